"""How callers learn of changes without polling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from laneway.engines.shared.interrupt import Interrupt
from laneway.message import Batch


class ResultListener(Protocol):
    """
    A listener that is notified when the stored results of messages change, when leases are aborted,
    and when a watched topic changes.

    `poll` and `close` belong to one thread; any thread may call the other methods.
    """

    def subscribe(self, *names: str) -> None:
        """
        Subscribe to names from `result_name` or `Wakeup.watch_topic`, to `ABORT`, or to `PING`.

        Each name is reported once as soon as its subscription is active; read its state then. Later
        reports mean that its state has changed.
        """

    def unsubscribe(self, *names: str) -> None:
        """Cancel these subscriptions."""

    def poll(self, timeout: float) -> list[str] | None:
        """
        Wait at most `timeout` seconds for notifications.

        Returns the reported names, an empty list after the timeout or `wake`. None means that
        notifications may have been lost, for example after a reconnect; read the state of all
        subscribed names.
        """

    def wake(self) -> None:
        """Make the current or next `poll` return immediately."""

    def close(self) -> None:
        """Cancel all subscriptions and free the connection."""


class ArrivalListener(Protocol):
    """
    A listener that is notified when a message arrives in a lane that had nothing to deliver. It is
    for busy workers, which are not blocked in `Wakeup.wait`.

    `poll` and `close` belong to one thread; any thread may call `wake`.
    """

    def poll(self, timeout: float) -> bool:
        """
        Wait at most `timeout` seconds for an arrival. Returns True after an arrival: lease now.

        At most one listener is notified, and only if no worker is blocked in `Wakeup.wait`. Best
        effort: a notification may be duplicated or, after a crash, lost.
        """

    def wake(self) -> None:
        """Make the current or next `poll` return False immediately."""

    def close(self) -> None:
        """Stop listening and free the connection."""


class WorkListener(Protocol):
    """
    A listener that is notified when a message can be leased, for workers with free slots.

    It stays ready to be notified between two calls of `poll`.
    `poll`, `pause` and `close` belong to one thread; any thread may call `wake`.
    """

    def poll(self, timeout: float, startable: int = 0) -> Batch | bool:
        """
        Wait at most `timeout` seconds until a message can probably be leased.

        The first call, and the first call after `pause`, also finds messages that have already
        arrived. The listener counts as a waiting caller of `Wakeup.wait`.

        Arguments: `startable`: how many messages the caller could start now. The engine may lease
        up to that many to the caller in the call that puts them; with 0, it only notifies.

        Returns the messages that were leased to the caller, True if the caller should lease now, or
        False after the timeout or `wake`.
        """

    def wake(self) -> None:
        """Make the current or next `poll` return immediately."""

    def pause(self) -> Batch | bool:
        """
        Stop notifications until the next `poll`. Returns what had already arrived, as `poll` does;
        an engine may instead pass a notification on to another waiting worker.
        """

    def pass_on(self) -> bool:
        """
        Notify another waiting worker, because the caller cannot start the messages that it was
        notified of.

        Returns False if the engine cannot do that. The caller then leases a message, so that the
        engine sees the remaining ones.
        """

    def close(self) -> None:
        """Stop listening and free the connection. Call `pause` first."""


@runtime_checkable
class ReadableListener(WorkListener, Protocol):
    """
    A work listener with a file that another thread may watch, and read by `receive` when it is
    readable. An event loop can then begin a handler without the thread that calls the engine.
    """

    generation: int
    """Grows with each new file; the watcher of an older file removes its watch."""

    is_watched: bool
    """Whether a thread watches the file; set by the caller of `poll`."""

    @property
    def look_at(self) -> float:
        """When `poll` must be called even if nothing arrives (monotonic seconds)."""

    def duplicate_file(self) -> int:
        """
        Return a duplicate of the file, which the caller closes, or -1 if no file exists now or
        nothing is leased to this listener. For the thread that calls `poll`. Raises OSError.
        """

    def receive(self) -> Batch | bool:
        """
        Return immediately what has arrived, as `poll` does, or False while another thread reads the
        file. Any thread may call this.
        """


@runtime_checkable
class Wakeup(Protocol):
    """Wait for work, and listen for arrivals, results and topic changes."""

    def wait(
        self,
        timeout: float,
        *,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        interrupt: Interrupt | None = None,
    ) -> bool:
        """
        Block until a message can probably be leased, at most `timeout` seconds of real time.

        The engine wakes one waiting caller for each lane that becomes runnable; nothing polls.

        Arguments: `pool`, `topics`: as in `Queue.lease`; `interrupt`: ends only this call.

        Returns True if the caller should lease now, or False after the timeout or an interrupt.
        """

    def work_listener(
        self,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        *,
        max_lease_us: int | None = None,
    ) -> WorkListener:
        """
        Create a listener for messages that can be leased. `pool`, `topics`, and `max_lease_us` for
        messages leased to the caller directly: as in `Queue.lease`.

        With an empty list of topics, the listener is for a caller that looks itself, because it
        leases by patterns. It is notified of each lane of the pool that becomes runnable. The first
        `poll`, and the first one after `pause`, returns True: look once, now that notifications
        have begun.

        An engine without its own listener returns
        `laneway.engines.shared.waiting_listener.WaitingListener`.
        """

    def arrival_listener(self, pool: str = "default") -> ArrivalListener:
        """
        Create a listener for arrivals in a pool.

        A worker with a full prefetch buffer leases again only after part of it has run, and a quiet
        topic's message would wait for that. The listener tells the worker to lease immediately.
        """

    def result_listener(self) -> ResultListener:
        """Create a listener for stored results, aborted leases and watched topics."""

    def watch_topic(self, topic: str, seconds: float, *, now_us: int | None = None) -> list[str]:
        """
        Notify of changes of a topic for `seconds` seconds.

        Returns the names to subscribe to with a `ResultListener`, each with the prefix `CHANGED`.
        Each is notified after a call that settles, moves or removes a message of that part of the
        topic. Returns an empty list if nothing waits in the topic or is leased.
        """

    def interrupt(self) -> None:
        """Make all current `wait` calls of this engine object return False immediately."""
