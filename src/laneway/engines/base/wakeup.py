"""How callers learn of changes without polling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from laneway.engines.shared.interrupt import Interrupt
    from laneway.message import Batch


class ResultListener(Protocol):
    """
    Is notified when the stored results of messages change, when leases are aborted, and when a
    watched topic changes.

    `poll` and `close` belong to one thread; any thread may call the other methods.
    """

    def subscribe(self, *names: str) -> None:
        """
        Subscribe to these names of `result_name`, `ABORT`, `PING`, or names from
        `Wakeup.watch_topic`.

        Each is reported once as soon as its subscription is active; read its state then. Later
        reports mean that its state changed.
        """

    def unsubscribe(self, *names: str) -> None:
        """Cancel these subscriptions."""

    def poll(self, timeout: float) -> list[str] | None:
        """
        Wait at most `timeout` seconds for notifications.

        Returns the names that were reported; empty after the timeout or `wake`. None means that
        notifications may have been lost, for example after a reconnect; read the state of all
        subscribed names.
        """

    def wake(self) -> None:
        """Make the current or next `poll` return immediately."""

    def close(self) -> None:
        """Cancel all subscriptions and free the connection."""


class ArrivalListener(Protocol):
    """
    Is notified when a message arrives in a lane that had nothing to deliver. For a worker that is
    busy and so is not blocked in `Wakeup.wait`.

    `poll` and `close` belong to one thread; any thread may call `wake`.
    """

    def poll(self, timeout: float) -> bool:
        """
        Wait at most `timeout` seconds for an arrival. Returns True if there was one: lease now.

        At most one listener is notified, and only if no worker is blocked in `Wakeup.wait`. Best
        effort: a notification may be duplicated or, after a crash, lost.
        """

    def wake(self) -> None:
        """Make the current or next `poll` return False immediately."""

    def close(self) -> None:
        """Stop listening and free the connection."""


class WorkListener(Protocol):
    """
    Is notified when something can be leased. For a worker that has free slots.

    It stays ready to be notified between two calls of `poll`.
    `poll`, `pause` and `close` belong to one thread; any thread may call `wake`.
    """

    def poll(self, timeout: float, startable: int = 0) -> Batch | bool:
        """
        Wait at most `timeout` seconds until something can probably be leased.

        The first call, and the first one after `pause`, also looks for messages that are already
        there. The listener is one of those that `Wakeup.wait` describes.

        Arguments: `startable`: how many messages the caller could start now. The engine may lease
        up to that many to the caller in the call that puts them; with 0, it only notifies.

        Returns the messages that were leased to the caller; True: lease now; False: the time is
        over, or `wake` was called.
        """

    def wake(self) -> None:
        """Make the current or next `poll` return immediately."""

    def pause(self) -> Batch | bool:
        """
        Stop being notified until the next `poll`. Returns what had arrived before, as `poll` does;
        an engine may instead pass a notification on to another worker that waits.
        """

    def pass_on(self) -> bool:
        """
        Notify another worker that waits, because the caller cannot start what it was notified of.

        Returns False if the engine cannot do that. The caller then leases a message, so that
        the engine sees what is left.
        """

    def close(self) -> None:
        """Stop listening and free the connection. Call `pause` before."""


@runtime_checkable
class ReadableListener(WorkListener, Protocol):
    """
    A work listener with a file that another thread may watch, and read by `receive` when it is
    readable. So an event loop begins a handler without the thread that calls the engine.
    """

    generation: int
    """Grows with each new file; a watcher of an older one removes its watch."""

    is_watched: bool
    """Whether a thread watches the file; set by the caller of `poll`."""

    @property
    def look_at(self) -> float:
        """When `poll` has to be called, whether or not something arrives (monotonic seconds)."""

    def duplicate_file(self) -> int:
        """
        A duplicate of the file, which the caller closes; -1 if there is none now, or nothing
        is leased to this listener. For the thread that calls `poll`. Raises OSError.
        """

    def receive(self) -> Batch | bool:
        """
        Return immediately what has arrived, as `poll` does, or False while another thread reads it.
        Any thread may call it.
        """


@runtime_checkable
class Wakeup(Protocol):
    """Wait for work, and listen to arrivals, results and changes of topics."""

    def wait(
        self,
        timeout: float,
        *,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        interrupt: Interrupt | None = None,
    ) -> bool:
        """
        Block until something can probably be leased, at most `timeout` seconds of real time.

        The engine wakes one waiting caller for each lane that becomes runnable; nothing polls.

        Arguments: `pool`, `topics`: as in `Queue.lease`; `interrupt`: ends this call alone.

        Returns True: lease now. False: the time is over, or the call was interrupted.
        """

    def work_listener(
        self,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        *,
        max_lease_us: int | None = None,
    ) -> WorkListener:
        """
        Create a listener for what can be leased. `pool`, `topics`, and `max_lease_us` of the
        messages leased to the caller directly: as in `Queue.lease`.

        An engine without a way of its own returns
        `laneway.engines.shared.waiting_listener.WaitingListener`.
        """

    def arrival_listener(self, pool: str = "default") -> ArrivalListener:
        """
        Create a listener for arrivals in a pool.

        A worker with a full prefetch buffer leases again only when some of it has run, and a quiet
        topic's message would wait for that. The listener tells the worker to lease immediately.
        """

    def result_listener(self) -> ResultListener:
        """Create a listener for stored results, aborted leases and watched topics."""

    def watch_topic(self, topic: str, seconds: float, *, now_us: int | None = None) -> list[str]:
        """
        Notify of changes of a topic for `seconds` seconds.

        Returns the names to subscribe to with a `ResultListener`, each with the prefix `CHANGED`.
        Each is notified after a call that settles, moves or removes a message of that part of the
        topic. Empty: nothing waits in the topic and nothing of it is leased.
        """

    def interrupt(self) -> None:
        """Make all current `wait` calls of this engine object return False immediately."""
