"""
What type checkers make of the public face: `make lint` reads this file with mypy and, where node is
there, with pyright.

`assert_type` says what must come out. A wrong call is marked with the error that it must be: an
error that no longer comes is an unused ignore, and that is an error too. Nothing here is called.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, assert_type

from laneway import (
    Delivery,
    ElectionState,
    Job,
    Laneway,
    Message,
    Receipt,
    Request,
    Stats,
    Summary,
    Task,
    Term,
    Topic,
    chain,
    chord,
    group,
)
from laneway.tasks.canvas import GroupJob


def test_is_for_type_checkers() -> None:
    """The names that are checked below are there."""
    assert all((Delivery, Laneway, Message, Receipt, Request, Stats, Summary, Task, Topic))


if TYPE_CHECKING:
    app = Laneway()

    # Tasks keep the arguments of their function, with and without parentheses.

    @app.task
    def plain(number: int, *, text: str = "") -> float: ...

    @app.task(topic="mail.{customer}", rate="10/s", time_limit="1m")
    async def mail(customer: str, template: str) -> bool: ...

    app.task(rte="1/s")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    app.task(concurrency="4")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]

    # Settings of policies are known by name and type.

    app.policy(
        "push.*",
        rate="50/s",
        concurrency=4,
        merge="last",
        lease="1m",
        backoff={"base": 1},
        paused=None,
    )
    app.topic("push.a").policy(weight=2, serial=True)
    app.policy("push.*", rte="1/s")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.policy("push.*", concurrency="4")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.policy("push.*", merge="lst")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.topic("push.a").policy(rte="1/s")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

    assert_type(plain(1, text="x"), float)
    assert_type(plain.delay(1, text="x"), Job[float])
    assert_type(plain.delay(1).get(timeout=5), float)
    assert_type(mail.delay("acme", template="welcome"), Job[bool])

    plain.delay("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    plain.delay(1, text=2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    plain.delay()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    plain.delay(1, txt="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    mail.delay("acme")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.task("mail")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]

    assert_type(mail.using(delay="10m", priority=5).enqueue("acme", template="x"), Job[bool])
    mail.using(prioriti=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    mail.using(delay=5).enqueue("acme")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert_type(plain.map(range(3), priority=1), list[Job[float]])

    # Flows give the handle of their end.

    assert_type((plain.s(1) | mail.s("x")).enqueue(), Job[bool])
    assert_type(chain(mail.s("acme", "x"), plain.s(), mail.s("x")).enqueue(), Job[bool])
    assert_type(chain(plain.s(1)).delay(), Job[float])
    assert_type(group(plain.s(n) for n in range(3)).enqueue(), GroupJob[float])
    assert_type(group(plain.s(1), plain.s(2)).enqueue().get(timeout=5), list[float])
    assert_type(chord([plain.s(1), plain.s(2)], mail.s("x")).enqueue(), Job[bool])
    assert_type(chord([plain.s(1), plain.s(2)])(mail.s("x")), Job[bool])
    assert_type(plain.chunks([(1,), (2,)], 10).enqueue(), GroupJob[list[float]])
    plain.s(1) | 5  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue, reportUnusedExpression]
    chain(plain.s(1), "x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]

    # A bound task's own first argument is not the caller's.

    @app.task(bind=True, name="bound")
    def bound(self: Task[..., float], number: int) -> float:
        assert_type(self.request, Request)
        return number / 2

    assert_type(bound(1), float)
    assert_type(bound.delay(number=1), Job[float])
    bound.delay()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    bound.delay("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    # Publishing: the same options everywhere.

    topic = app.topic("push.acme")
    assert_type(
        app.publish("push.acme", {"order": 1}, key="k", delay="10m", headers={"a": "b"}, timeout=1),
        Receipt,
    )
    assert_type(topic.publish(priority=5), Receipt)
    assert_type(app.publish_many(Message("push.acme", n) for n in range(3)), list[Receipt])
    app.publish("push.acme", 1, prioriti=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    topic.publish(1, prioriti=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    topic.publish(1, priority="high")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.publish_many([1])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]

    async def lockstep() -> None:
        assert_type(await app.apublish("push.acme", ttl="1h"), Receipt)
        assert_type(await topic.apublish(1, at_front=True), Receipt)
        assert_type(await app.apublish_many([Message("push.acme")]), list[Receipt])
        assert_type(await app.alease(10, wait="5s"), list[Delivery])
        assert_type(await topic.astats(), Stats)
        assert_type(await mail("acme", "welcome"), bool)
        assert_type(await mail.adelay("acme", "welcome"), Job[bool])
        assert_type(await mail.delay("acme", "welcome"), bool)
        assert_type(await (await mail.adelay("acme", "welcome")).aget(timeout="5s"), bool)
        await mail(customer=1, template="x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await mail.adelay("acme", 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await topic.await_done(tiemout=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

    # Handlers stay what they were.

    @app.handler("push.*", concurrency=5, isolation="process")
    def handle(message: Message) -> None: ...

    assert_type(handle(Message("push.acme")), None)

    @app.handler("hooks.*")
    async def hook(message: Message) -> None:
        assert_type(message.id, str)
        takes_headers({"webhook-id": message.id})

    def takes_headers(headers: dict[str, str]) -> None: ...

    Message("push.acme", id=None)
    Message("push.acme", {"order": 1}, "key", id="17")
    Message("push.acme", id=17)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Message("push.acme", idd="17")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    app.handler("push.*", isolation="fork")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.handler("push.*", batc=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    # Middlewares and hooks are functions of the right shape.

    @app.around_publish
    def stamp(message: Message) -> Generator[Message, Receipt, None]:
        assert_type((yield message), Receipt)

    @app.around_handling
    def measure(message: Message) -> Generator[None, None, None]:
        yield

    @app.on_dead
    def report(message: Message, error: BaseException) -> None: ...

    @app.on_dead  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUntypedFunctionDecorator]
    def too_few(message: Message) -> None: ...

    assert_type(app.run_worker(concurrency=5, burst=True, grace="1m"), Summary)
    app.run_worker(concurency=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

    # A career's methods may be coroutine functions, and may take the term.

    class Builder:
        def inaugurate(self, term: Term) -> None: ...
        async def execute(self, term: Term) -> None:
            assert_type(await term.asleep(5), bool)

        def hand_over(self) -> None: ...

    election = app.election("index", Builder, term="5s")
    assert_type(election.run(terms=1), int)
    assert_type(election.step_down(wait=5), ElectionState)
    app.election("index", Message)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    app.election("index", Builder, trem=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
