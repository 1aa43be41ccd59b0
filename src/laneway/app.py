"""`Laneway`: the application object that a program creates."""

from __future__ import annotations

import functools
import os
from collections.abc import (
    AsyncIterable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import Executor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, Never, ParamSpec, TypeVar, Unpack, overload

from laneway import (
    arguments,
    config,
    delivery,
    programs,
    versions,
)
from laneway.admin import (
    policies as admin_policies,
    subscriptions as admin_subscriptions,
    top_topics,
    workers as admin_workers,
)
from laneway.admin.dead_letters import DeadLetters
from laneway.admin.history import Histories
from laneway.admin.outbox import Outbox
from laneway.admin.policies import Gates, Policies, TopicGroups
from laneway.admin.subscriptions import Subscriptions
from laneway.admin.top_topics import ListOrder
from laneway.admin.topic import Topic
from laneway.admin.topic_waits import IdleWait
from laneway.admin.values import Values
from laneway.admin.views import Stats
from laneway.admin.workers import Control, WorkerInfo
from laneway.awaitable import async_variant
from laneway.cluster import election as elections_
from laneway.cluster.career import Career
from laneway.cluster.election import Election, Elections
from laneway.cluster.subscription_workers import SubscriptionWorkers
from laneway.delivery import Delivery
from laneway.engines.base import (
    ENDED,
    Durability,
    Explanation,
    FullEngine,
    IdState,
)
from laneway.errors import LanewayError
from laneway.history.alarms import AlarmRule, OnAlarm
from laneway.message import Message, Receipt
from laneway.policy import Gate, OnFull, PolicyOptions, check_pattern, check_topic
from laneway.printable import redacted
from laneway.producing.buffer import Buffer
from laneway.producing.publish_options import PublishOptions
from laneway.producing.spool import Spool
from laneway.producing.spool_file import SpoolStatus
from laneway.push.endpoints import Endpoints
from laneway.runtime.runtime import Runtime
from laneway.schedules.store import Options as ScheduleOptions, Schedules
from laneway.subscriptions import Kind, Start, Where
from laneway.tasks import context, decorator, outcomes, queue
from laneway.tasks.decorator import BoundTaskDecorator, TaskDecorator, TaskKeywords
from laneway.tasks.flow import OPEN, FlowHandler, ended_signals, open_signals
from laneway.tasks.job import Job, job_of
from laneway.tasks.queue import Queue
from laneway.tiers import Tier
from laneway.topic_groups import GROUP
from laneway.units import Duration
from laneway.working.embedded_worker import EmbeddedWorker
from laneway.working.handler import Isolation
from laneway.working.options import EmbeddedOptions, Options, Summary, WorkerOptions

if TYPE_CHECKING:
    from laneway.admin.topic_reasons import TopicExplanation
    from laneway.gateway.extension import Extension
    from laneway.gateway.gateway import Gateway
    from laneway.leases import Leases
    from laneway.push.endpoint import Endpoint
    from laneway.tasks.task import AsyncTask, Task

F = TypeVar("F")
L = TypeVar("L", bound="Callable[[], Any]")
M = TypeVar("M", bound="Callable[[Message], Generator[Message, Receipt, None]]")
H = TypeVar("H", bound="Callable[[Any], Generator[None, None, None]]")
OnSuccess = TypeVar("OnSuccess", bound="Callable[[Message], object]")
OnUnsent = TypeVar("OnUnsent", bound="Callable[[Message, LanewayError], object]")
OnError = TypeVar("OnError", bound="Callable[[Message, BaseException], object]")
P = ParamSpec("P")
R = TypeVar("R")


class Laneway:
    """
    An application: it publishes messages, handles them, and inspects and changes their topics.

    `url` selects the engine; default: `$LANEWAY_URL`, `[tool.laneway] url` in ./pyproject.toml,
    `sqlite:///laneway.db`. `namespace` is a separate set of topics and policies in the store;
    `durability`, `max_backlog`, `on_full`, `tiers` and `default_tier` apply to it. `create=False`
    refuses a store that does not exist. `result_ttl` and `failure_ttl`: how long results and
    failures of tasks are stored. `buffer` (True, or a `Buffer`) and `spool` (a path, or a `Spool`):
    `publish` returns immediately, and a thread sends. `outbox`: the URL of a database of your own;
    workers forward what `publish(connection=…)` writes there. docs/reference/settings.md lists
    them all.

    The engine is opened at first use. It then declares the policies and gates that were set before;
    they belong to `program` (default: the module that creates the application). A newer `version`
    replaces them, and an older one changes nothing. Without a version, each start replaces them.

    Every method that uses the engine has an async variant with the prefix `a`. Raises UsageError
    and BadPolicy for wrong arguments.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = "default",
        tiers: Mapping[str, Tier | float | str] | None = None,
        default_tier: str | None = None,
        durability: Durability | None = None,
        max_backlog: int | str | None = None,
        on_full: OnFull = "refuse",
        create: bool = True,
        result_ttl: Duration = outcomes.RESULT_TTL,
        failure_ttl: Duration = outcomes.FAILURE_TTL,
        program: str | None = None,
        version: str | int | None = None,
        buffer: Buffer | bool = False,
        spool: Spool | str | os.PathLike[str] | None = None,
        outbox: str | None = None,
        **unknown: Never,
    ) -> None:
        config.refuse_unknown("Laneway", unknown, {"url", *config.options_of(Laneway.__init__)})
        settings = config.settings(
            namespace=namespace,
            tiers=tiers,
            default_tier=default_tier,
            durability=durability,
            max_backlog=max_backlog,
            on_full=on_full,
            create=create,
        )
        url = None if url is None else arguments.name("Laneway", "url", url)
        self.program = (
            programs.check_name(program) if program is not None else programs.calling_module()
        )
        """The program that declares the policies and gates given before the store is opened."""
        self.version = versions.check(version)
        self.runtime = Runtime(
            self,
            url,
            settings,
            program=self.program,
            version=self.version,
            result_ttl=arguments.seconds("Laneway", "result_ttl", result_ttl),
            failure_ttl=arguments.seconds("Laneway", "failure_ttl", failure_ttl),
            buffer=buffer,
            spool=spool,
            outbox=None if outbox is None else arguments.name("Laneway", "outbox", outbox),
        )
        """The application's state in this process; for extensions and tests."""
        handlers = self.runtime.handlers
        handlers.add_own(FlowHandler("laneway.ended", ENDED, "end notice", ended_signals))
        handlers.add_own(FlowHandler(OPEN, OPEN, "opener of a flow", open_signals))
        handlers.find_named = functools.partial(queue.find, self.runtime)
        handlers.make_side_workers = functools.partial(SubscriptionWorkers, self.threads)
        self.policies = Policies(self.runtime)
        self.gates = Gates(self.runtime)
        self.topic_groups = TopicGroups(self.runtime)
        self.subscriptions = Subscriptions(self.runtime)
        self.dead_letters = DeadLetters(self.runtime)
        self.schedules = self.runtime.schedules = Schedules(self.runtime)
        self.elections = Elections(self.runtime)
        self.endpoints = Endpoints(self.runtime)
        self.outbox = Outbox(self.runtime)
        self.history = Histories(self.runtime)
        self.values = Values(self.runtime)
        self.control = Control(self.runtime)

    # The engine

    @property
    def url(self) -> str:
        """The engine's URL, with its password if it has one."""
        return self.runtime.url

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        return self.runtime.namespace

    @property
    def engine(self) -> FullEngine:
        """The engine, opened at first use; a forked child opens its own."""
        return self.runtime.engine

    @property
    def threads(self) -> Executor:
        """Threads for the blocking calls of coroutines."""
        return self.runtime.threads

    def close(self) -> None:
        """
        Stop this application's workers, send buffered messages, end blocked calls, and close the
        engine. The next use opens it again.

        Raises UsageError in a handler, and on the event loop of a worker.
        """
        self.runtime.close()

    def __enter__(self) -> Laneway:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Settings

    def tiers(
        self,
        changes: Mapping[str, Tier | float | str | None] | None = None,
        /,
        **shares: Tier | float | str | None,
    ) -> None:
        """
        Add and change tiers, by name as in `Laneway(tiers=…)`; None removes one: `app.tiers(gold=3,
        low=None)`. If the store is not open yet, they are set when it is opened.

        Every process uses them from its next lease on. They belong to the code's layer, and stay
        until a program that declares other tiers opens the store. Raises BadPolicy, for example if
        a removed tier is the default or a policy names it.
        """
        self.runtime.holder.set_tiers({**(changes or {}), **shares})

    def policy(self, pattern: str, /, **fields: Unpack[PolicyOptions]) -> None:
        """
        Set fields of the policy of a topic, or of all topics under a dotted prefix (`"push.*"`), or
        of their subscriptions of a name (`"push.*#audit"`); None removes a field.

        They belong to the code's layer, so an operator's setting takes precedence. Before the store
        is opened, they belong to the program and its version (see `Laneway`). Later, they stay
        until they are reset, and take precedence over those that programs declare. Raises
        BadPolicy, including if another program declares a different value.
        """
        self.runtime.holder.set_policy(pattern, fields)

    def policy_many(
        self,
        policies: Iterable[tuple[str, Mapping[str, Any]]] | Mapping[str, Mapping[str, Any]],
    ) -> int:
        """
        Set the policies of many topics or patterns, given as pairs of name and fields or as a
        mapping, in batches. Returns the number of policies set.

        The cost per topic does not depend on the number of topics with a policy. Raises BadPolicy,
        which names the topic; its notes give the number of policies that were set before.
        """
        pairs = policies.items() if isinstance(policies, Mapping) else policies
        count = self.runtime.holder.declare_many(pairs)
        return count if count is not None else admin_policies.set_many(self.engine, pairs)

    apolicy_many = async_variant(policy_many)

    def gate(
        self,
        name: str,
        *,
        rate: float | str | None = None,
        burst: int | None = None,
        concurrency: int | None = None,
        max_cost: int | None = None,
    ) -> None:
        """
        Set a limit that several topics share; their policies name it by `gate=`. Raises BadPolicy.

        `max_cost`: the maximum cost of a message; default: what the rate produces in 60 s, but at
        least its burst.
        """
        self.runtime.holder.set_gate(name, Gate.of(name, rate, burst, concurrency, max_cost))

    def topic_group(
        self,
        name: str,
        *,
        weight: float | None = None,
        rate: float | str | None = None,
        burst: int | None = None,
        concurrency: int | None = None,
    ) -> None:
        """
        Set the weight and the limits of a topic group, the topics whose policies name it by
        `group=`. Each call replaces all of the group's settings in the code's layer; None leaves
        one unset.

        `weight`: its share among the groups and topics of its tier, 0.01 … 1,000; default 1.
        `rate`, `burst`, `concurrency`: for all its topics together. An operator's settings take
        precedence. Raises BadPolicy.

            app.policy("push.*", group="customer.{1}")
            app.topic_group("customer.acme", weight=3, rate="200/s")
        """
        settings = Gate.of_group(name, rate, burst, concurrency, weight)
        self.runtime.holder.set_gate(GROUP + name, settings)

    # Subscriptions

    def subscribe(
        self,
        /,
        pattern: str,
        name: str,
        *,
        kind: Kind = "shared",
        start: Start = "now",
        where: Where | None = None,
        expires: Duration | None = None,
        forget_after: Duration | None = None,
        **unknown: Never,
    ) -> None:
        """
        Give a topic, or all topics under a dotted prefix, a named reader with a copy of each new
        message. The subscription `audit` of the topic `orders` is the topic `orders#audit`.

        `kind`: `"shared"`: its consumers compete; `"exclusive"`, `"failover"`: it has one consumer,
        and a second one is refused, or takes over when the first one ends. `start`: `"all waiting"`
        also copies the messages that the topic holds, up to 100,000. `where`: copy only messages
        whose headers match all of these, like `{"type": "order.*"}`. `expires`: stop copying after
        this long without use. `forget_after`: remove the subscription, with its messages, if
        `subscribe` is not called for it for this long; the next call for the same topic with
        `forget_after` removes it.

        It is a setting of the topic's policy; a second call changes it. See docs/subscriptions.md.
        Raises BadPolicy, UsageError; with `start="all waiting"`, also Refused and BacklogFull.
        """
        config.refuse_unknown("subscribe", unknown, config.options_of(Laneway.subscribe))
        admin_subscriptions.subscribe(
            self.runtime,
            pattern,
            name,
            kind=kind,
            start=start,
            where=where,
            expires=expires,
            forget_after=forget_after,
        )

    # Publishing

    def publish(
        self,
        topic: str,
        body: Any = None,
        *,
        timeout: Duration | None = None,
        connection: Any = None,
        **options: Unpack[PublishOptions],
    ) -> Receipt:
        """
        Publish one message. When this returns, the message is as durable as the engine's durability
        promises.

        Options: `key`, `priority`, `delay` or `at`, `ttl`, `id`, `headers`, `at_front`, `cost`;
        `Message` explains them. Concurrent calls share transactions. With `on_full="block"` the
        call waits for room in a full backlog, at most `timeout`. Returns the receipt. Raises
        BadMessage, BacklogFull, EngineUnavailable.

        `connection`: publish in the transaction of this connection to your own database, with the
        outcome `"spooled"`. The message exists once that transaction commits, and workers forward
        it (`Laneway(outbox=…)`). A connection of psycopg, asyncpg or sqlite3, a Connection or
        Session of SQLAlchemy, or Django's `connection`. Raises the database's errors.
        """
        return self.runtime.publish(topic, body, options, timeout, connection)

    async def apublish(
        self,
        topic: str,
        body: Any = None,
        *,
        timeout: (Duration | None) = None,  # noqa: ASYNC109  # how long a full backlog may hold it up, as in publish
        connection: Any = None,
        **options: Unpack[PublishOptions],
    ) -> Receipt:
        """
        Like `publish`, awaited. Messages that coroutines publish concurrently share a transaction.
        """
        return await self.runtime.apublish(topic, body, options, timeout, connection)

    def publish_many(
        self,
        messages: Iterable[Message],
        *,
        progress: bool | None = None,
        timeout: Duration | None = None,
        connection: Any = None,
    ) -> list[Receipt]:
        """
        Publish any number of messages, streamed in batches of about 1,000. Returns their receipts
        in the same order. The next batch is read while one is being stored.

        A message over a backlog limit has the outcome `"refused"`; with `on_full="block"` only
        after waiting `timeout` for room. Each batch is atomic; an error's notes give the number of
        messages accepted before it. `progress`: show progress on standard error; default: only on a
        terminal. `connection`: as in `publish`. Raises BadMessage, EngineUnavailable.
        """
        producer = self.runtime.producer_in(connection)
        return producer.publish_many(messages, progress=progress, timeout=timeout)

    async def apublish_many(
        self,
        messages: Iterable[Message] | AsyncIterable[Message],
        *,
        progress: bool | None = None,
        timeout: (Duration | None) = None,  # noqa: ASYNC109  # how long a full backlog may hold it up, as in publish_many
        connection: Any = None,
    ) -> list[Receipt]:
        """
        Like `publish_many`, awaited. It accepts an async iterable too (without progress). A plain
        iterable is read in a thread.
        """
        producer = self.runtime.producer_in(connection)
        return await producer.apublish_many(messages, progress=progress, timeout=timeout)

    def flush(self, timeout: Duration | None = None) -> int:
        """
        Send the messages in the buffer or spool, and wait at most `timeout` for the store's
        answers. Returns the number of messages without an answer; 0 immediately without a buffer or
        spool. Raises UsageError.
        """
        return self.runtime.producer.flush(timeout)

    def spool_status(self) -> SpoolStatus:
        """Return the spool's count, size and age, and why it waits. Raises UsageError."""
        return self.runtime.producer.spool_status()

    # Consuming by hand

    def lease(
        self,
        n: int = 1,
        *,
        wait: Duration = 0.0,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        priority: int | None = None,
        max_priority: int | None = None,
        only: Sequence[str] | None = None,
        lease: Duration | None = None,
    ) -> list[Delivery]:
        """
        Lease up to `n` messages in fair order; wait at most `wait` for the first one. You must
        settle each of them.

        `topics`: only these, strictly in this order. `only`: only these topics and patterns, in
        fair order. `priority`, `max_priority`: only messages of at least, and at most, this
        priority. With `wait`, the call searches for priorities and patterns twice per second.
        `lease`: end the lease after this long (at least 1 s) if the policy's `lease` is longer.
        Raises UsageError, EngineUnavailable; Refused for a subscription that does not exist.
        """
        priorities = delivery.priorities(priority, max_priority)
        wanted = delivery.Wanted.checked(pool, topics, priorities, only, lease)
        return delivery.lease(self.runtime, wanted, n, wait)

    async def alease(
        self,
        n: int = 1,
        *,
        wait: Duration = 0.0,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        priority: int | None = None,
        max_priority: int | None = None,
        only: Sequence[str] | None = None,
        lease: Duration | None = None,
    ) -> list[Delivery]:
        """
        Like `lease`, awaited. Messages that arrive after the caller was cancelled are released
        immediately.
        """
        priorities = delivery.priorities(priority, max_priority)
        wanted = delivery.Wanted.checked(pool, topics, priorities, only, lease)
        return await delivery.alease(self.runtime, wanted, n, wait)

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """
        Ack many messages in one transaction. Raises LeaseLost if some leases had ended; the other
        messages are finished nevertheless.
        """
        delivery.ack_many(self.engine, deliveries)

    def extend_many(self, deliveries: Iterable[Delivery], by: Duration) -> list[Delivery]:
        """
        Extend many leases until at least `by` from now, in one transaction. Returns the deliveries
        whose leases had ended. Raises BadMessage, UsageError, EngineUnavailable.
        """
        return delivery.extend_many(self.engine, deliveries, by)

    def release_many(self, deliveries: Iterable[Delivery], *, begun: bool = True) -> None:
        """
        Return many messages immediately without counting an attempt, in one transaction; see
        `Delivery.release`. Messages whose leases had ended have already returned.
        """
        delivery.release_many(self.engine, deliveries, begun=begun)

    def leases(
        self,
        limit: int,
        *,
        pool: str = "default",
        topics: Sequence[str] | None = None,
        only: Sequence[str] | None = None,
        lease: Duration | None = None,
    ) -> Leases:
        """
        Lease messages yourself, at most `limit` at a time; a thread renews the leases until
        the messages are settled. Use it to write your own consumer.

            with app.leases(10, only=["push.*"], lease="9s") as leases:
                for delivery in leases.take(wait=30):
                    ...
                    delivery.ack()

        `take` also waits for room: each settled message makes room for another one. If the process
        dies, its messages are delivered again after `lease`. Other arguments and errors: as in
        `lease`.
        """
        # Workers and producers do not need it.
        from laneway.leases import Leases  # noqa: PLC0415

        wanted = delivery.Wanted.checked(pool, topics, None, only, lease)
        return Leases(self.runtime, wanted, limit)

    # Topics

    def topic(self, name: str) -> Topic:
        """A handle on one topic. Raises BadMessage if the name is invalid."""
        return Topic(self.runtime, check_topic(name))

    def topics(
        self,
        *,
        order: ListOrder | Literal["repeats"] = "name",
        pattern: str = "*",
        limit: int = 20,
        after: str | None = None,
    ) -> list[Stats]:
        """
        List topics by `"name"` (paged by `after`), or the first ones by `"backlog"`, `"age"`,
        `"rate"` (deliveries), `"in-rate"` (arrivals), `"worker-time"`, `"failures"`, `"dead"` or
        `"throttled"`. Raises UsageError, BadPolicy.

        `pattern`: a pattern of topics (`"orders.*"`) or of the subscriptions with one name
        (`"orders.*#audit"`), which cannot be listed by name.

        `"repeats"` lists the topics in which merging would save most messages, from a sample of the
        next 200 messages of each of the 50 topics with the largest backlogs.
        """
        return top_topics.listed(self.engine, order, pattern, limit, after)

    def wait_idle(self, pattern: str, timeout: Duration | None = None) -> bool:
        """
        Wait until no message waits or is leased in a topic, or in the topics of a pattern: for
        example, until a crawl whose handlers publish more messages has ended. Delayed messages,
        retries and paused topics count; subscriptions of the pattern's topics do not.

        Returns False after the timeout. Raises UsageError, BadPolicy.
        """
        return IdleWait(self.runtime, check_pattern(pattern)).run(timeout)

    async def await_idle(self, pattern: str, timeout: Duration | None = None) -> bool:  # noqa: ASYNC109  # as in wait_idle
        """Like `wait_idle`, awaited."""
        return await IdleWait(self.runtime, check_pattern(pattern)).arun(timeout)

    def alarm(
        self,
        name: str,
        pattern: str = "*",
        /,
        *,
        tier: str | None = None,
        full_within: Duration | None = None,
        drain_over: Duration | None = None,
        oldest_over: Duration | None = None,
        waiting_over: int | None = None,
    ) -> None:
        """
        Set an alarm, which the program's workers compare with the history every 10 s. It is active
        while one of its limits is exceeded; the hooks of `on_alarm` are called when it begins and
        ends.

        Arguments: `name`: unique in the namespace; `pattern`, `tier`: as in `history.read`;
        `full_within`: a backlog limit will be reached within this time; `drain_over`: the backlog
        needs longer than this to drain, or does not drain; `oldest_over`: a message has waited
        longer than this; `waiting_over`: more messages than this wait. Raises UsageError.
        """
        rule = AlarmRule.checked(
            name=name,
            pattern=pattern,
            tier=tier,
            full_within=full_within,
            drain_over=drain_over,
            oldest_over=oldest_over,
            waiting_over=waiting_over,
        )
        self.runtime.handlers.alarms.add_rule(rule, self.runtime.max_backlog)

    def on_alarm(self, hook: OnAlarm) -> OnAlarm:
        """
        Register a hook that is called with an `Alarm` when an alarm begins and when it ends.

        Only the namespace's first worker that notices the alarm calls the hook, in its own thread.
        The hook's errors are logged.
        """
        self.runtime.handlers.alarms.add_hook(hook)
        return hook

    def explain(self, message_id: str, topic: str | None = None) -> Explanation:
        """
        Explain what a message is waiting for, and when it will likely start. `topic` is required
        for an id that you chose.
        """
        # Programs that only publish or work do not need it.
        from laneway.push import reasons  # noqa: PLC0415

        message_id = arguments.name("explain", "the id", message_id)
        topic = None if topic is None else check_topic(topic)
        return reasons.explain_message(self.engine, message_id, topic)

    def explain_topic(self, topic: str) -> TopicExplanation:
        """
        Explain why a topic delivers nothing, or too little: reasons as sentences, the decisive one
        first, each with advice.
        """
        # Programs that only publish or work do not need it.
        from laneway.push import reasons  # noqa: PLC0415

        return reasons.explain_topic(
            self.engine, check_topic(topic), max_backlog=self.runtime.max_backlog
        )

    def workers(
        self, pool: str | None = None, *, limit: int = 1000, after: str | None = None
    ) -> list[WorkerInfo]:
        """
        List the workers that serve the namespace by id, as of their last heartbeats. A dead worker
        stays on the list for a few seconds.

        Arguments: `pool`: only workers that serve it; `limit`: the maximum number; `after`: the
        last id of the previous page.
        """
        return admin_workers.listed(self.engine, pool, limit, after)

    def lookup(self, topic: str, ids: Iterable[str]) -> dict[str, IdState]:
        """
        Look up the state of each id: `"unknown"`, `"waiting"`, `"leased"`, `"finished"` or
        `"dead"`.
        """
        return self.engine.lookup(check_topic(topic), arguments.texts("lookup", "ids", ids))

    # Handling

    def handler(
        self,
        pattern: str,
        *,
        subscription: str | None = None,
        concurrency: int | None = None,
        isolation: Isolation | None = None,
        batch: int | None = None,
        batch_wait: Duration | None = None,
        time_limit: Duration | None = None,
        soft_time_limit: Duration | None = None,
        **unknown: Never,
    ) -> Callable[[F], F]:
        """
        Register a function for the messages of a topic, or of all topics under a dotted prefix; the
        most specific pattern wins.

        With `subscription`, the function gets only that subscription's copies; without it, it gets
        no copies.

        `async def` runs on the event loop, `def` in threads, with `isolation="process"` in child
        processes. `concurrency`: the maximum number of concurrent calls in one worker. `batch=n`:
        the function gets a list of up to n messages; an error applies to all of them; to settle
        them individually, return a list with None or an exception for each; `batch_wait`: how long
        a call waits for n messages, from its first one (default: a call takes whatever is
        available). `soft_time_limit`: raise SoftTimeLimit in the function after this time.
        `time_limit`: stop the function after this time, or after its topic's policy if that is
        shorter. Raises UsageError.
        """
        config.refuse_unknown("handler", unknown, config.options_of(Laneway.handler))
        return self.runtime.handlers.decorator(
            pattern,
            subscription=subscription,
            concurrency=concurrency,
            isolation=isolation,
            batch=batch,
            batch_wait=batch_wait,
            time_limit=time_limit,
            soft_time_limit=soft_time_limit,
        )

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self, function: None = None, /, *, bind: Literal[True], **options: Unpack[TaskKeywords]
    ) -> BoundTaskDecorator: ...

    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        bind: Literal[False] = False,
        **options: Unpack[TaskKeywords],
    ) -> TaskDecorator: ...

    def task(
        self,
        function: Callable[P, Any] | None = None,
        /,
        *,
        base: type[Task[Any, Any]] | None = None,
        **options: Any,
    ) -> Any:
        """
        Make a function callable in the background: `function.delay(…)`. With or without
        parentheses.

        `topic` may name arguments (`"mail.{customer}"`); default `task.<name>`. `key` (serial
        processing, merging) and `id` (repeating the call is a duplicate) may name arguments too.
        `bind=True`: the first argument is the task itself. `base`: a subclass of `Task`, with
        hooks. `autoretry_for`: only these errors are retried, and never those of
        `dont_autoretry_for`. `serializer`: "json", "msgpack" or "pickle"; with "pickle", anyone who
        can publish to the store can run code in its workers. `isolation`, `time_limit` and
        `soft_time_limit` are as in `handler`. docs/tasks.md lists all options.

        All other options are fields of the topic's policy (`rate`, `concurrency`, `retries` …).
        Raises UsageError, BadPolicy.
        """
        return decorator.decorated(self.runtime, function, base, options)

    def run_worker(self, **options: Unpack[WorkerOptions]) -> Summary:
        """
        Handle messages until SIGTERM or SIGINT, or with `burst` until no message can run now.
        Returns the number of handled messages by outcome.

        `WorkerOptions` has the options: `concurrency`, `pool`, `topics`, `processes` and others.
        Raises UsageError if an event loop runs in this thread (see `arun_worker`), and while a
        worker imports the module that makes this call: put the call under
        `if __name__ == "__main__":`.
        """
        # A program that only publishes needs none of it.
        from laneway.working.run import run_worker  # noqa: PLC0415

        return run_worker(self.runtime, Options.checked("run_worker", {**options}))

    async def arun_worker(self, **options: Unpack[EmbeddedOptions]) -> Summary:
        """
        Handle messages on the running event loop until cancelled, until `aclose`, or with `burst`
        until no message can run now. Returns the number of handled messages by outcome.

        When cancelled, it shuts down gracefully within `grace`; when cancelled again, it stops
        immediately. It never changes signal handlers.
        """
        return await EmbeddedWorker.of(self.runtime, "arun_worker", {**options}).arun()

    def worker(self, **options: Unpack[EmbeddedOptions]) -> EmbeddedWorker:
        """
        Create a worker inside a program that also does other work: `async with app.worker() as
        worker:` runs it during the block.

        `worker.stop()` ends it from any thread; `worker.run()` runs it in its own thread. It
        never changes signal handlers.
        """
        return EmbeddedWorker.of(self.runtime, "worker", {**options})

    def lifespan(self, function: L) -> L:
        """
        Declare state of a worker, such as a connection pool: a generator function without
        parameters, `async` or not, that yields it once.

        Each worker calls it when it starts, and continues it after its last handler. Its return
        annotation (`AsyncIterator[Database]`) names the type; handlers and tasks with a parameter
        of that type (or `Database | None = None`) get it from their worker. Declare it above them.
        It is not available in child processes (`isolation="process"`). Raises UsageError.
        """
        self.runtime.handlers.lifespans.add(function)
        return function

    # Push

    def push(self, pattern: str) -> None:
        """
        Send the messages of a topic, or of all topics under a dotted prefix, to their endpoints
        (see `endpoint`), and the messages of their subscriptions to the subscriptions' endpoints.

        The workers of this program send; `laneway push` runs one. The pattern's policy gets the
        retry schedule of Standard Webhooks (`retries`, `backoff`), `ttl="4d"` and
        `concurrency="auto"`, unless this program sets these fields. Needs the extra:
        `pip install "laneway[push]"`. Raises UsageError, BadPolicy.
        """
        from laneway.push.handler import push  # noqa: PLC0415  # most programs push nothing

        push(self.runtime, pattern)

    def endpoint(self, topic: str, /, **settings: Any) -> Endpoint:
        """
        Create or change the endpoint to which `push` sends a topic's messages. Without
        settings, return the existing endpoint.

            app.endpoint("push.acme", url="https://acme.example/hooks", timeout=15)

        The endpoint of a subscription, such as `push.acme#crm`, declares that subscription too.
        Omitted settings do not change; None resets a setting. `docs/push.md` lists them. A new
        endpoint gets a secret, which only this call returns, as the attribute `secret`. Raises
        UsageError; Refused if no endpoint exists, or if its secret cannot be stored.
        """
        from laneway.push.endpoint import set_endpoint  # noqa: PLC0415  # as in push

        return set_endpoint(self.runtime, topic, settings)

    # Jobs

    def queue(
        self,
        name: str = "default",
        *,
        isolation: Isolation | None = None,
        default_timeout: Duration | None = None,
        **unknown: Never,
    ) -> Queue:
        """
        Return a topic for calls of any importable function: `app.queue("low").enqueue(function, 1,
        text="x")`.

        The worker's program must name the queue too: functions are imported by name only for named
        queues. `isolation="process"`: each call runs in a child process that can be killed.
        `default_timeout`: the time limit of calls that do not set one. Raises UsageError.
        """
        config.refuse_unknown("queue", unknown, config.options_of(Laneway.queue))
        return queue.named(self.runtime, name, isolation, default_timeout)

    def job(self, job_id: str, topic: str | None = None) -> Job[Any]:
        """
        Return the handle of a task's call by its id, from any process.

        Without `topic`, the id is found if the store generated it, or if it is in a topic of this
        program's tasks that does not depend on arguments. An id that you chose, or that belongs to
        a flow, a spool or an outbox, may need its topic.
        """
        return job_of(self.runtime, job_id, topic)

    # Schedules

    def schedule(
        self, name: str, call: Message | Task[..., Any], **options: Unpack[ScheduleOptions]
    ) -> None:
        """
        Declare a schedule in the program's code: a message or call that is published repeatedly.
        Workers store it when they start.

        `call`: a message, or a task with `args` and `kwargs`. Give one of `every` ("10m"; "2
        months"), `cron` (five fields, or six with seconds first; or @daily …), `sun` (("sunrise",
        latitude, longitude)) and `at` (once); in `timezone`, from `start` on. `missed`: for firings
        that were missed because no worker ran: "one" publishes the last of them, "all" each, "skip"
        none. `spread`: delay each schedule by its own part of this duration. See docs/schedules.md.

        Each firing is published once, whatever the number of workers. Raises UsageError,
        BadMessage.
        """
        self.schedules.declare(name, call, options)

    # HTTP

    def asgi(self, *, is_open: bool = False, extensions: Sequence[Extension] = ()) -> Gateway:
        """
        Return the HTTP API (see docs/gateway.md) as an ASGI application, to mount in another one.

        Until the namespace has tokens, it answers only clients on this machine, and no requests
        that came through a proxy. `is_open`: every client may do everything. `extensions`: pages of
        other packages (see `laneway.gateway.extension`). Call the application's `close` at the end.
        """
        from laneway.gateway.gateway import Gateway  # noqa: PLC0415  # most programs serve none

        return Gateway(self, is_open=is_open, extensions=extensions)

    # Elections

    def election(
        self,
        name: str,
        career: Callable[[], Career] | None = None,
        *,
        term: Duration = 10.0,
        hand_over_within: Duration = 30.0,
        stalled_after: Duration | None = None,
        zookeeper: str | None = None,
        in_workers: bool = False,
        **unknown: Never,
    ) -> Election:
        """
        Run a singleton: one of the processes that run the election holds its term at a time.

        `career`: a class with `inaugurate()`, `execute(term)` and `hand_over()`, each a plain or a
        coroutine function; or a function that creates such an object. Every term gets a new
        one. `term.number` is a fencing token for your own store: it grows with every term.

        `term`: how long the holder may be unreachable before another one takes over, from 0.5 s to
        1 h. `hand_over_within`: how long a holder may take to step down. `stalled_after`: a holder
        that has not checked its term for that long is asked to step down. `zookeeper`: where the
        election is kept, `"host:2181,host:2181/root"`; default: the store. `in_workers`: the
        application's workers are candidates. See docs/elections.md.

        `election.run()`, `await election.arun()` or `election.start()` makes this process
        a candidate. Without a career, the election can only be read and asked to step down. Raises
        UsageError.
        """
        known = {"career", *config.options_of(Laneway.election)}
        config.refuse_unknown("election", unknown, known)
        return elections_.election_of(
            self.runtime,
            name,
            career,
            term=term,
            hand_over_within=hand_over_within,
            stalled_after=stalled_after,
            zookeeper=zookeeper,
            in_workers=in_workers,
        )

    # Around publishing and handling

    def around_publish(self, middleware: M) -> M:
        """
        Register a publish middleware, called for every message of `publish`, `publish_many` and
        `delay`; the first one is the outermost.

        It is a generator function that yields once: the message, or a modified copy
        (`msgspec.structs.replace`). The yield returns the message's receipt. An error before the
        yield refuses the message; an error of publishing is raised at the yield. Raises UsageError
        for another function.
        """
        self.runtime.producer.middlewares.add(middleware)
        return middleware

    def around_handling(self, middleware: H) -> H:
        """
        Register a handling middleware, called around every handler call; the first one is the
        outermost. It must not block.

        It is a generator function that gets the message (for a batch handler: the list) and yields
        once. The handler runs at the yield, and its error is raised there. The middleware's error
        is the outcome: it may replace one error with another, or with Reject. Raises UsageError for
        another function.
        """
        self.runtime.handlers.middlewares.add_middleware(middleware)
        return middleware

    def carry(self, variable: ContextVar[Any], name: str | None = None) -> None:
        """
        Carry a context variable from publisher to handler: the variable has the same value (any
        JSON value) while the message is handled.

        `name`: the header's name (default: the variable's). Batch handlers and child processes do
        not get it.
        """
        publishing, handling = context.middlewares(variable, name)
        self.around_publish(publishing)
        self.around_handling(handling)

    def on_success(self, hook: OnSuccess) -> OnSuccess:
        """
        Register a hook that is called with each message that a worker of this program has finished.

        Hooks run one at a time in their own thread, after the engine has stored the outcome; their
        errors are logged. They are not called for messages that end without a handler
        (expired, purged, worker killed).
        """
        self.runtime.handlers.middlewares.add_hook("success", hook)
        return hook

    def on_failure(self, hook: OnError) -> OnError:
        """
        Register a hook for each attempt that failed: the handler raised an error or timed out, or
        its process died. See `on_success`.
        """
        self.runtime.handlers.middlewares.add_hook("failure", hook)
        return hook

    def on_retry(self, hook: OnError) -> OnError:
        """
        Register a hook for each message that will be retried, after a failure or by `Retry`. See
        `on_success`.
        """
        self.runtime.handlers.middlewares.add_hook("retry", hook)
        return hook

    def on_dead(self, hook: OnError) -> OnError:
        """
        Register a hook for each message that became a dead letter: its retries are used up, or
        `Reject` was raised. See `on_success`.
        """
        self.runtime.handlers.middlewares.add_hook("dead", hook)
        return hook

    def on_unsent(self, hook: OnUnsent) -> OnUnsent:
        """
        Register a hook for each message of the buffer or spool that the store did not accept: it is
        called with the message and the error.

        The thread that sends calls it, so it must not block; its errors are logged. The message
        was not stored, unless the error's `applied` is None.
        """
        self.runtime.unsent.add(hook)
        return hook

    aclose = async_variant(close)
    aendpoint = async_variant(endpoint)
    aflush = async_variant(flush)
    aspool_status = async_variant(spool_status)
    aschedule = async_variant(schedule)
    apolicy = async_variant(policy)
    atiers = async_variant(tiers)
    agate = async_variant(gate)
    atopic_group = async_variant(topic_group)
    asubscribe = async_variant(subscribe)
    aack_many = async_variant(ack_many)
    aextend_many = async_variant(extend_many)
    arelease_many = async_variant(release_many)
    atopics = async_variant(topics)
    aexplain = async_variant(explain)
    aexplain_topic = async_variant(explain_topic)
    aworkers = async_variant(workers)
    alookup = async_variant(lookup)

    def __repr__(self) -> str:
        return f"<Laneway {redacted(self.url)} namespace {self.namespace}>"
