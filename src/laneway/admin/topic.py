"""`Topic`: a handle on one topic, to inspect and change it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Never, Unpack

from laneway import arguments, config, units
from laneway.admin import dead_letters, messages, policies, subscriptions as admin_subscriptions
from laneway.admin.dead_letters import DeadLetter
from laneway.admin.subscriptions import SubscriptionInfo
from laneway.admin.topic_waits import DoneWait, IdleWait
from laneway.admin.views import Stats, message_of, stats_of
from laneway.awaitable import async_variant
from laneway.cluster.consumer import Consumer
from laneway.engines.base import HELD_STATES, HeldState, IdState
from laneway.message import Message, Receipt
from laneway.policy import PolicyOptions
from laneway.producing.publish_options import PublishOptions
from laneway.runtime.runtime import Noun, Runtime
from laneway.subscriptions import Kind, Start, Where, topic_of
from laneway.units import Duration


class Topic(Noun):
    """A handle on the topic with a name. Publishing to the topic creates it."""

    __slots__ = ("name",)

    def __init__(self, runtime: Runtime, name: str) -> None:
        super().__init__(runtime)
        self.name = name

    def publish(
        self,
        body: Any = None,
        *,
        timeout: Duration | None = None,
        **options: Unpack[PublishOptions],
    ) -> Receipt:
        """Like `Laneway.publish`, to this topic."""
        return self._runtime.publish(self.name, body, options, timeout)

    async def apublish(
        self,
        body: Any = None,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109  # as in app.apublish
        **options: Unpack[PublishOptions],
    ) -> Receipt:
        """Like `publish`, awaited."""
        return await self._runtime.apublish(self.name, body, options, timeout)

    def stats(self) -> Stats:
        """
        Return the topic's current counters: waiting, leased, dead, cursors and others; all zero for
        an idle topic.
        """
        engine = self._runtime.engine
        return stats_of(engine.topic_stats(self.name), engine.time_us(self.name))

    def policy(self, /, **fields: Unpack[PolicyOptions]) -> dict[str, Any]:
        """
        Set fields of the policy of exactly this topic. Returns the value of every field that
        is set for it, patterns included.

        Raises BadPolicy; TopicInUse if `partitions` or `buckets` of a topic that is not empty would
        change.
        """
        if fields:
            self._runtime.holder.set_policy(self.name, fields)
        return {
            field: value
            for field, (value, _, _) in self._runtime.engine.policies().why(self.name).items()
        }

    def subscribe(
        self,
        /,
        name: str,
        *,
        kind: Kind = "shared",
        start: Start = "now",
        where: Where | None = None,
        expires: Duration | None = None,
        forget_after: Duration | None = None,
        **unknown: Never,
    ) -> Topic:
        """
        Give the topic a named reader with a copy of each new message; see `Laneway.subscribe`.
        Returns the topic of the copies, such as `orders#audit`. Raises BadPolicy, UsageError.
        """
        config.refuse_unknown("subscribe", unknown, config.options_of(Topic.subscribe))
        admin_subscriptions.subscribe(
            self._runtime,
            self.name,
            name,
            kind=kind,
            start=start,
            where=where,
            expires=expires,
            forget_after=forget_after,
        )
        return Topic(self._runtime, topic_of(self.name, name))

    def unsubscribe(self, name: str) -> int:
        """Like `app.subscriptions.remove`, for this topic."""
        return admin_subscriptions.remove(self._runtime.engine, self.name, name)

    def subscriptions(self) -> list[SubscriptionInfo]:
        """List the topic's subscriptions by name, including those of patterns."""
        return admin_subscriptions.find(self._runtime.engine, self.name)

    def consumer(self, *, term: Duration = 10.0, wait: Duration | None = None) -> Consumer:
        """
        Create the only consumer of an exclusive or failover subscription: `with
        app.topic("orders#audit").consumer() as consumer:`.

        `term`: how long it may be unreachable before another one takes over, from 0.5 s to 1 h.
        `wait`: how long to wait for a failover subscription; None waits forever. Raises UsageError;
        the `with` block raises Refused.
        """
        return Consumer(lambda: self._runtime.engine, self.threads, self.name, term=term, wait=wait)

    def pause(self) -> None:
        """
        Accept messages but deliver none until `resume`. The pause belongs to the operator's layer,
        which takes precedence over the code's policies.
        """
        self._runtime.engine.policy_set("operator", self.name, {"paused": True})

    def resume(self) -> None:
        """
        Deliver again, even if a pattern's policy pauses the topic. Raises Refused if its endpoint
        is disabled.
        """
        policies.resume(self._runtime.engine, self.name)

    def back_off(self, duration: Duration) -> bool:
        """
        Deliver nothing for this duration, as if the destination were unavailable, and then one
        message at a time until one is acked. 0 ends the back-off; messages that wait for their own
        retries keep their due times, see `retry_now`.

        Returns False if no message waits or is leased. Raises UsageError.
        """
        seconds = arguments.seconds(f"topic {self.name}", "the back-off", duration)
        return self._runtime.engine.topic_back_off(self.name, round(seconds * units.SECOND)) > 0

    def retry_now(self, message_id: str) -> None:
        """
        Make a message ready now that is delayed, waits for a retry, or is dead.

        Raises Refused if the message does not exist or is ready or leased.
        """
        messages.act(self._runtime.engine, "retry", message_id, self.name)

    def make_dead(self, message_id: str, reason: str | None = None) -> None:
        """
        Make a waiting message a dead letter. `reason`: stored with it.

        Raises Refused if the message does not exist or is leased or dead.
        """
        messages.act(self._runtime.engine, "dead", message_id, self.name, reason)

    def drop(self, message_id: str) -> None:
        """
        Remove a waiting or dead message.

        Raises Refused if the message does not exist or is leased.
        """
        messages.act(self._runtime.engine, "drop", message_id, self.name)

    def release(self, message_id: str) -> None:
        """
        End the lease of a message whose holder has ended. The message is then delivered again.

        A holder that is still alive can no longer settle it. No attempt is counted. Raises Refused
        if the message does not exist or is not leased.
        """
        messages.act(self._runtime.engine, "release", message_id, self.name)

    def purge(self) -> int:
        """
        Remove all waiting messages; leased ones settle as usual. Returns the number of removed
        messages.
        """
        return self._runtime.engine.topic_purge(self.name)

    def delete(self) -> int:
        """
        Remove everything: waiting and leased messages, dead letters, known ids, counters. Returns
        the number of removed messages.
        """
        return self._runtime.engine.topic_delete(self.name)

    def peek(self, limit: int = 10, *, state: HeldState | None = None) -> list[Message]:
        """
        Return the messages that will be delivered next, in order, then the delayed ones.
        Changes nothing. `state`: only `"ready"`, `"parked"`, `"delayed"` or `"leased"` messages.

        Raises UsageError.
        """
        if state is not None:
            arguments.choice("peek", "state", state, HELD_STATES)
        return [
            message_of(view)
            for view in self._runtime.engine.topic_peek(
                self.name, limit=arguments.whole("peek", "limit", limit), state=state
            )
        ]

    def lookup(self, ids: Iterable[str]) -> dict[str, IdState]:
        """
        Look up the state of each id: `"unknown"`, `"waiting"`, `"leased"`, `"finished"` or
        `"dead"`.
        """
        return self._runtime.engine.lookup(self.name, arguments.texts("lookup", "ids", ids))

    def wait_done(self, timeout: Duration | None = None) -> bool:
        """
        Wait until every message that was published to the topic before this call is finished:
        acked, dead, expired or removed. It does not wait for messages that handlers publish
        meanwhile; see `wait_idle`.

        Returns False after the timeout.
        """
        return DoneWait(self._runtime, self.name).run(timeout)

    async def await_done(self, timeout: Duration | None = None) -> bool:  # noqa: ASYNC109  # as in wait_done
        """Like `wait_done`, awaited."""
        return await DoneWait(self._runtime, self.name).arun(timeout)

    def wait_idle(self, timeout: Duration | None = None) -> bool:
        """
        Wait until no message waits in the topic (delayed ones included) or is leased. See
        `Laneway.wait_idle` for several topics.

        Returns False after the timeout.
        """
        return IdleWait(self._runtime, self.name).run(timeout)

    async def await_idle(self, timeout: Duration | None = None) -> bool:  # noqa: ASYNC109  # as in wait_idle
        """Like `wait_idle`, awaited."""
        return await IdleWait(self._runtime, self.name).arun(timeout)

    def dead_letters(self, limit: int = 50, *, after: int = 0) -> list[DeadLetter]:
        """
        List the topic's dead letters, oldest first. `after`: the number of the last dead letter of
        the previous page.
        """
        return dead_letters.find(self._runtime.engine, self.name, limit=limit, after=after)

    def redrive(
        self,
        ids: Sequence[str] | None = None,
        *,
        rate: float | str | None = None,
        limit: int | None = None,
    ) -> int:
        """
        Put dead letters back into the topic, all or those with these ids, oldest first: immediately
        or at a rate (`"10/s"`), and at most `limit`. Returns the number of messages.
        """
        return dead_letters.redrive(self._runtime.engine, self.name, ids, rate=rate, limit=limit)

    def drop_dead_letters(
        self, ids: Sequence[str] | None = None, *, limit: int | None = None
    ) -> int:
        """
        Delete dead letters, all or those with these ids, oldest first and at most `limit`. Returns
        the number of messages.
        """
        return dead_letters.drop(self._runtime.engine, self.name, ids, limit=limit)

    astats = async_variant(stats)
    apolicy = async_variant(policy)
    asubscribe = async_variant(subscribe)
    aunsubscribe = async_variant(unsubscribe)
    asubscriptions = async_variant(subscriptions)
    apause = async_variant(pause)
    aresume = async_variant(resume)
    aback_off = async_variant(back_off)
    aretry_now = async_variant(retry_now)
    amake_dead = async_variant(make_dead)
    adrop = async_variant(drop)
    arelease = async_variant(release)
    apurge = async_variant(purge)
    adelete = async_variant(delete)
    apeek = async_variant(peek)
    alookup = async_variant(lookup)
    adead_letters = async_variant(dead_letters)
    aredrive = async_variant(redrive)
    adrop_dead_letters = async_variant(drop_dead_letters)

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"
