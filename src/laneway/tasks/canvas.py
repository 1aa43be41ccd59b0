"""
Flows: calls that follow each other: `a.s(1) | b.s()`, `group(…)`,
`chord(group(…), c.s())`, nested in any way.

A flow becomes a graph of messages. Each message except the first ones waits for signals of those
before it, see `laneway.tasks.flow`. Either all messages are stored before any of them starts, or
none, see `laneway.tasks.flow_storage`.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Any, Generic, Protocol, Self, TypeVar, cast, overload

import msgspec

from laneway import arguments
from laneway.awaitable import async_variant
from laneway.engines.base import FLOW_HEADER, SIGNALS_HEADER
from laneway.errors import EngineUnavailable, UsageError
from laneway.headers import MAX_SIGNALS
from laneway.message import Message
from laneway.runtime.runtime import Runtime
from laneway.tasks import flow, flow_storage
from laneway.tasks.binding import Binding
from laneway.tasks.flow import Flow, Follower, Target
from laneway.tasks.invocation import Invocation
from laneway.tasks.job import Job
from laneway.tasks.options import CALL_OPTIONS
from laneway.tasks.request import PARENT_HEADER, ROOT_HEADER, lineage
from laneway.tasks.template import RESULT_BEFORE
from laneway.units import Duration

R = TypeVar("R")
H = TypeVar("H")
K = TypeVar("K")
L = TypeVar("L")
R_co = TypeVar("R_co", covariant=True)


class FlowTask(Protocol[R_co]):
    """What a flow needs of the tasks in it; `laneway.Task` is one."""

    @property
    def runtime(self) -> Runtime:
        """The application that it belongs to."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def binding(self) -> Binding:
        """The signature of its function."""

    @property
    def returns(self) -> Any:
        """The type that its function returns, or None if unknown."""

    @property
    def serializer(self) -> Any:
        """How its calls and results are encoded."""

    @property
    def errors_of_each(self) -> bool:
        """Whether an error handler of a group is called for each member that fails."""

    def __call__(self, *args: Any, **kwargs: Any) -> R_co:
        """Call the function directly."""

    def named_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a call with Laneway's names, checked. Raises UsageError."""

    def signature(self, args: Sequence[Any] = ()) -> Signature[Any]:
        """A call that is not published yet."""

    def keeps_result(self, options: Mapping[str, Any]) -> bool:
        """Whether the result of a call with these options is stored."""

    def invocation(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: Mapping[str, Any],
        *,
        first: tuple[Any, ...] = (),
        more: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        each: bool = False,
    ) -> Invocation:
        """Encode a call. Raises BadMessage."""

    def publish(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> Any:
        """Publish a call. Returns its handle."""

    def prepared(self, call: Signature[Any], job_id: str) -> Signature[Any]:
        """The call that is published for one that starts a flow, under this id."""

    def local_job(self, returned: Any) -> Job[Any]:
        """The handle of a call that ran here and returned this."""

    def given(self, job: Any) -> Any:
        """The handle for the caller, of a job or of a group."""

    def errback_takes(self, own: int) -> int:
        """How many arguments about a failure it takes as an error handler."""


class Part(ABC, Generic[H]):
    """
    A part of a flow. `H`: the type of the handle that publishing returns: `Job[R]`, or
    `GroupJob[R]` if a group is last.
    """

    _unclear_id: str | None = None
    """The flow's id if it is unknown how much of it was stored."""

    @abstractmethod
    def calls(self) -> Iterator[Signature[Any]]:
        """All calls in it."""

    @abstractmethod
    def weave(self, graph: _Graph, before: _Ends) -> _Ends:
        """Add it to a graph, behind `before`. Returns its own ends."""

    @abstractmethod
    def clone(self) -> Self:
        """A copy that can be changed independently."""

    def __or__(self, other: Part[K]) -> Chain[K]:
        """A chain: this part, then the other."""
        return self.chained([self.clone(), _part(other).clone()])

    def chained(self, parts: list[Part[Any]]) -> Chain[Any]:
        """A chain; a subclass may have one of its own."""
        return Chain(parts)

    @property
    def runtime(self) -> Runtime:
        """The application of its tasks. Raises UsageError if it is not one."""
        apps = {id(call.task.runtime): call.task.runtime for call in self.calls()}
        if len(apps) != 1:
            raise UsageError(
                "a flow: it has no tasks"
                if not apps
                else (
                    "a flow: its tasks are those of several applications; a flow lives in one store"
                )
            )
        return next(iter(apps.values()))

    @property
    def threads(self) -> Executor:
        """Threads for the blocking calls of coroutines."""
        return self.runtime.threads

    def link(self, follower: L) -> L:
        """
        Add a part that follows with the result. The flow does not wait for it. Returns the
        follower.
        """
        last = list(self.calls())[-1]
        last.followers.append(_part(follower).clone())
        return follower

    def link_error(self, follower: L) -> L:
        """
        Add a call that is made when this fails permanently. Its arguments are the job's id, the
        error in one line, and the traceback; with `si` its own arguments. It is called once for a
        flow, whichever call failed. Returns the follower. Raises UsageError.
        """
        if not isinstance(follower, Signature):
            raise UsageError(
                f"link_error: expected a call of a task, like handle.s(), got {follower!r:.80}"
            )
        error_id = uuid.uuid4().hex
        for call in self.calls():
            call.errors.append((error_id, follower))
        return follower

    def on_error(self, follower: Signature[Any]) -> Self:
        """As `link_error`, but returns this part."""
        self.link_error(follower)
        return self

    # Publishing

    def enqueue(self) -> H:
        """
        Publish all of it, or nothing. Returns the handle of its last part: a Job, or a GroupJob if
        a group is last. An empty group has ended already: nothing is published.

        Raises what `publish` raises. After EngineUnavailable, the flow may or may not be
        stored. Call this again on the same object: it stores what is missing, and nothing
        twice.
        """
        if next(self.calls(), None) is None:
            return cast("H", GroupJob([]))
        runtime = self.runtime
        if runtime.eager:
            return cast("H", self._given(self.eagerly(())))
        woven = _Graph(self._unclear_id)
        ends = self.weave(woven, _Ends([], is_group=False))
        jobs = {node.id: node.job() for node in woven.nodes}
        if woven.nodes:
            try:
                flow_storage.publish(
                    runtime, woven.id, woven.messages(), again=self._unclear_id is not None
                )
            except EngineUnavailable:
                self._unclear_id = woven.id
                raise
        self._unclear_id = None
        return cast("H", self._given(woven.handle(ends, jobs)))

    def _given(self, handle: Any) -> Any:
        return next(self.calls()).task.given(handle)

    aenqueue = async_variant(enqueue)

    @abstractmethod
    def eagerly(self, before: tuple[Any, ...]) -> Any:
        """Run it in this process, for tests. Returns its handle."""

    def delay(self, *args: Any, **kwargs: Any) -> H:
        """Publish it, with these as the first arguments of its first calls."""
        return self.beginning(args, kwargs).enqueue()

    async def adelay(self, *args: Any, **kwargs: Any) -> H:
        """The async variant of `delay`."""
        return await self.beginning(args, kwargs).aenqueue()

    def beginning(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Self:
        """A copy with these as the first arguments of its first calls."""
        part = self.clone()
        if args or kwargs:
            for call in part.first():
                call.args, call.kwargs = (*args, *call.args), {**call.kwargs, **kwargs}
        return part

    @abstractmethod
    def first(self) -> list[Signature[Any]]:
        """The calls with which it starts."""


class Signature(Part[Job[R]], Generic[R]):
    """One call of a task that is not published yet."""

    is_prepared = False
    """Whether its task has prepared it, see `FlowTask.prepared`."""

    def __init__(
        self,
        task: FlowTask[R],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: dict[str, Any],
        *,
        immutable: bool = False,
    ) -> None:
        self.task = task
        self.args = args
        self.kwargs = kwargs
        self.options = options
        self.immutable = immutable
        self.followers: list[Part[Any]] = []
        self.errors: list[tuple[str, Signature[Any]]] = []
        self.each = False

    def clone(self) -> Self:
        copy = type(self)(
            self.task, self.args, dict(self.kwargs), dict(self.options), immutable=self.immutable
        )
        copy.followers, copy.errors, copy.each = (
            [each.clone() for each in self.followers],
            list(self.errors),
            self.each,
        )
        return copy

    def set(self, **options: Any) -> Self:
        """
        Set options of the call: those of `using`. Returns the call. Raises UsageError.
        """
        given = self.task.named_options(options)
        if "connection" in given:
            raise UsageError(
                f"task {self.task.name}: a flow is stored as a whole, outside the connection's"
                " transaction; publish a task in it that starts the flow"
            )
        self.options.update(given)
        return self

    def calls(self) -> Iterator[Signature[Any]]:
        yield self

    def first(self) -> list[Signature[Any]]:
        return [self]

    def weave(self, graph: _Graph, before: _Ends) -> _Ends:
        call = self
        if not (before.nodes or self.each or self.is_prepared):
            call = self.task.prepared(self, graph.next_id(self))
        node = graph.add(call, before)
        ends = _Ends([node], is_group=False)
        for follower in call.followers:
            follower.weave(graph, ends)
        return ends

    def enqueue(self) -> Job[R]:
        """Publish the call and its links. Returns its handle."""
        if (
            not (self.followers or self.errors or self.each or self.immutable)
            and not self.task.runtime.eager
        ):
            return cast("Job[R]", self.task.publish(self.args, self.kwargs, self.options))
        return super().enqueue()

    def eagerly(self, before: tuple[Any, ...]) -> Any:
        args = self.args if self.immutable else (*before, *self.args)
        if self.each:
            results = [self.task.publish(tuple(each), {}, self.options).get() for each in args]
            job: Job[Any] = self.task.local_job(results)
        else:
            job = self.task.publish(args, self.kwargs, self.options)
        for follower in self.followers:
            follower.eagerly((job.get(),))
        return job

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """
        Call the function directly, with these arguments before its own. A call for each of several
        items returns the list of what the function returned.
        """
        if self.each:
            return cast("R", [self.task(*each) for each in self.args])
        return self.task(*args, *self.args, **{**self.kwargs, **kwargs})

    def __repr__(self) -> str:
        shown = ", ".join(
            [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        )
        return f"{self.task.name}({shown})"


class Chain(Part[H]):
    """Parts that run one after the other, each with the result of the part before it."""

    def __init__(self, parts: Sequence[Part[Any]]) -> None:
        if not parts:
            raise UsageError("chain: expected at least one call, like chain(a.s(1), b.s())")
        self.parts: list[Part[Any]] = [
            inner for part in parts for inner in (part.parts if isinstance(part, Chain) else [part])
        ]

    def clone(self) -> Self:
        return type(self)([part.clone() for part in self.parts])

    def calls(self) -> Iterator[Signature[Any]]:
        for part in self.parts:
            yield from part.calls()

    def first(self) -> list[Signature[Any]]:
        return self.parts[0].first()

    def weave(self, graph: _Graph, before: _Ends) -> _Ends:
        for part in self.parts:
            if before.nodes and _is_nothing(part):
                continue  # an empty group changes nothing
            before = part.weave(graph, before)
        return before

    def eagerly(self, before: tuple[Any, ...]) -> Any:
        job: Any = None
        for part in self.parts:
            if job is not None and _is_nothing(part):
                continue
            job = part.eagerly(before)
            before = (job.get(),)
        return job

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.parts))


class Group(Part["GroupJob[R]"], Generic[R]):
    """Parts that run at the same time."""

    def __init__(self, parts: Sequence[Part[Any]]) -> None:
        self.parts: list[Part[Any]] = [
            inner for part in parts for inner in (part.parts if isinstance(part, Group) else [part])
        ]

    def clone(self) -> Self:
        return type(self)([part.clone() for part in self.parts])

    def calls(self) -> Iterator[Signature[Any]]:
        for part in self.parts:
            yield from part.calls()

    def first(self) -> list[Signature[Any]]:
        return [call for part in self.parts for call in part.first()]

    def weave(self, graph: _Graph, before: _Ends) -> _Ends:
        ends: list[_Node] = []
        shape: list[Any] = []
        for part in self.parts:
            inner = part.weave(graph, before)
            ends += inner.nodes
            shape.append(inner.shape if inner.is_group else None)
        return _Ends(ends, is_group=True, shape=shape)

    def eagerly(self, before: tuple[Any, ...]) -> GroupJob[R]:
        return GroupJob([part.eagerly(before) for part in self.parts])

    def link_error(self, follower: L) -> L:
        """
        Add a call that is made when a member fails permanently; for a Celery task, once for each
        member that fails.
        """
        if self.parts and next(self.calls()).task.errors_of_each:
            for part in self.parts:
                part.link_error(follower)
            return follower
        return super().link_error(follower)

    def link(self, follower: L) -> L:
        """Add a part that follows each member."""
        for call in self.calls():
            call.link(follower)
        return follower

    def __len__(self) -> int:
        return len(self.parts)

    def __repr__(self) -> str:
        return f"group({', '.join(map(repr, self.parts))})"


@overload
def chain(*parts: *tuple[*tuple[Part[Any], ...], Part[H]]) -> Part[H]: ...
@overload
def chain(*parts: Part[Any] | Iterable[Part[Any]]) -> Part[Any]: ...
def chain(*parts: Any) -> Part[Any]:  # type: ignore[misc]  # mypy does not see that Any takes an unpacked tuple
    """`a | b | c`: each part gets the previous part's result as its first argument."""
    return Chain(copies(parts))


@overload
def group(*parts: Part[Job[R]] | Iterable[Part[Job[R]]]) -> Group[R]: ...
@overload
def group(*parts: Part[Any] | Iterable[Part[Any]]) -> Group[Any]: ...
def group(*parts: Part[Any] | Iterable[Part[Any]]) -> Group[Any]:
    """Calls that run concurrently; after a part of a chain, each gets that part's result."""
    return Group(copies(parts))


@overload
def chord(header: Iterable[Part[Any]] | Group[Any], body: Part[H]) -> Chain[H]: ...
@overload
def chord(
    header: Iterable[Part[Any]] | Group[Any], body: None = None
) -> Callable[[Part[H]], H]: ...
def chord(
    header: Iterable[Part[Any]] | Group[Any], body: Part[Any] | None = None
) -> Chain[Any] | Callable[[Part[Any]], Any]:
    """
    A group, then a call with the list of all results. Without `body`, return a function that
    takes the body.
    """
    first = header.clone() if isinstance(header, Group) else group(*header)
    if body is None:
        return lambda last: chord(first, last).enqueue()
    return first.chained([first, _part(body).clone()])


def chunks(task: FlowTask[R], items: Iterable[Sequence[Any]], size: int) -> Group[list[R]]:
    """See `Task.chunks`."""
    stream = iter(items)
    pages: list[Part[Any]] = []
    while page := list(islice(stream, size)):
        pages.append(over(task, page))
    return Group(pages)


def over(task: FlowTask[Any], items: Iterable[Sequence[Any]]) -> Signature[Any]:
    """
    One message that calls a task for each item, which holds the arguments. Its result is the list
    of the results.
    """
    page = tuple(tuple(each) for each in items)
    for each in page:
        task.binding.bind(each, {})
    call = task.signature(page)
    call.each = True
    return call


class GroupJob(Generic[R]):
    """The handle of a group: the handles of its members, in their order."""

    def __init__(self, jobs: list[Any], before: tuple[Job[Any], ...] = ()) -> None:
        self.jobs = jobs
        self.before = before

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.jobs)

    def __getitem__(self, place: int) -> Any:
        return self.jobs[place]

    @property
    def results(self) -> list[Any]:
        """The same as `jobs`; Celery's programs read it even from an empty group."""
        return self.jobs

    def get(self, timeout: Duration | None = None, *, propagate: bool = True) -> list[R]:
        """
        The members' results, in their order. Waits for all of them, at most `timeout`. Raises the
        first error, TimeoutError.
        """
        seconds = arguments.seconds_or_none("get", "timeout", timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        return [
            job.get(
                None if deadline is None else max(0.0, deadline - time.monotonic()),
                propagate=propagate,
            )
            for job in self.jobs
        ]

    join = get

    async def aget(self, timeout: Duration | None = None, *, propagate: bool = True) -> list[R]:  # noqa: ASYNC109  # as in get
        """The async variant of `get`, as is `await group_job`."""
        async with asyncio.timeout(arguments.seconds_or_none("aget", "timeout", timeout)):
            return list(await asyncio.gather(*(job.aget(propagate=propagate) for job in self.jobs)))

    def __await__(self) -> Generator[Any, None, list[R]]:
        return self.aget().__await__()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until all have ended. Returns False after the timeout."""
        seconds = arguments.seconds_or_none("wait", "timeout", timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        return all(
            job.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
            for job in self.jobs
        )

    def completed_count(self) -> int:
        """How many have returned a result."""
        return sum(job.successful() for job in self.jobs)

    def ready(self) -> bool:
        """Whether all have ended."""
        return all(job.ready() for job in self.jobs)

    def successful(self) -> bool:
        """Whether all have returned a result."""
        return all(job.successful() for job in self.jobs)

    def failed(self) -> bool:
        """Whether one has failed."""
        return any(job.failed() for job in self.jobs)

    def cancel(self) -> int:
        """Cancel all, and the jobs before them. Returns how many had not ended."""
        return sum(job.cancel() for job in [*self.before, *self.jobs])

    def __repr__(self) -> str:
        return f"<GroupJob of {len(self.jobs)}>"


# The graph


class _Ends(msgspec.Struct):
    """
    The ends of a part of a flow. `is_group`: the next part gets a list, even for one result.
    `shape` (groups only): None for each call, a list for each nested group.
    """

    nodes: list[Any]
    is_group: bool
    shape: list[Any] = []

    def shaped(self, values: Iterable[Any]) -> list[Any]:
        """One value for each node, nested as the group is."""
        return flow.shaped(self.shape, iter(values))


class _Node:
    """
    A message of the flow: its call, the nodes that it waits for, and the targets of its signals.
    """

    def __init__(self, graph: _Graph, call: Signature[Any], before: _Ends) -> None:
        self.call = call
        self.before = before
        self.then: list[Target] = []
        self.id = graph.next_id(call)
        self.root: str = (
            before.nodes[0].root if before.nodes else lineage().get(ROOT_HEADER, self.id)
        )
        takes = (
            None
            if call.immutable or not (before.nodes or before.is_group)
            else "all"
            if before.is_group
            else "one"
        )
        self.takes = takes if before.nodes else None
        args = call.args
        if takes is not None and not before.nodes:  # behind a group of nothing
            args = ([], *args)
        is_nested = self.takes == "all" and any(before.shape)
        self.flow = Flow(
            takes=self.takes,
            shape=before.shape if is_nested else None,
            errors=[_follower(error_id, call) for error_id, call in call.errors],
        )
        self.needs = len(before.nodes)
        if self.needs > MAX_SIGNALS:
            raise UsageError(
                f"a flow: {call!r:.80} would wait for {self.needs:,} calls, at most"
                f" {MAX_SIGNALS:,} can be waited for; use chunks"
            )
        self._args = args
        # The topic and key, before the targets of its signals are known.
        unlinked = self._invocation({})
        self.topic, self.key = unlinked.topic, unlinked.options.get("key")
        for number, node in enumerate(before.nodes, 1):
            node.then.append(Target(self.topic, self.id, number, self.key))

    def _invocation(self, more: dict[str, Any]) -> Invocation:
        call = self.call
        options = {name: value for name, value in call.options.items() if name in CALL_OPTIONS} | {
            "id": self.id
        }
        if self.needs:
            options = {
                name: value for name, value in options.items() if name not in ("delay", "at")
            }  # it starts after the signals
        headers = {FLOW_HEADER: "1"}
        if self.needs:
            headers |= {
                SIGNALS_HEADER: str(self.needs),
                PARENT_HEADER: self.before.nodes[-1].id,
                ROOT_HEADER: self.root,
            }
        first = (RESULT_BEFORE,) if self.takes is not None else ()
        if call.each:
            more = {"each": True, **more}
        return call.task.invocation(
            self._args,
            call.kwargs,
            options,
            first=first,
            more=more,
            headers=headers,
            each=call.each,
        )

    def message(self) -> Message:
        """The message, with the targets of its signals."""
        self.flow.then = self.then
        return self._invocation({"flow": msgspec.to_builtins(self.flow)}).message()

    def job(self) -> Job[Any]:
        """Its handle."""
        return Job(
            self.call.task.runtime,
            self.id,
            self.topic,
            task=self.call.task,
            is_kept=self.call.task.keeps_result(self.call.options),
        )


class _Graph:
    """The messages of one flow."""

    def __init__(self, flow_id: str | None) -> None:
        self.id = flow_id or uuid.uuid4().hex
        self.nodes: list[_Node] = []

    def next_id(self, call: Signature[Any]) -> str:
        """The id of a call that is added now: its own if it has one."""
        own: str | None = call.options.get("id")
        return own or f"{self.id}.{len(self.nodes)}"

    def add(self, call: Signature[Any], before: _Ends) -> _Node:
        node = _Node(self, call, before)
        self.nodes.append(node)
        return node

    def messages(self) -> list[Message]:
        """All messages, the last one first."""
        return [node.message() for node in reversed(self.nodes)]

    def handle(self, ends: _Ends, jobs: dict[str, Job[Any]]) -> Any:
        """The handle of the flow's end, which knows the jobs before it."""
        last = {node.id for node in ends.nodes}
        before = tuple(job for job_id, job in jobs.items() if job_id not in last)
        if ends.is_group:
            return _group_job(ends.shaped(jobs[node.id] for node in ends.nodes), before)
        job = jobs[ends.nodes[0].id]
        job.before = before
        return job


def _group_job(members: list[Any], before: tuple[Job[Any], ...] = ()) -> GroupJob[Any]:
    return GroupJob(
        [_group_job(each) if isinstance(each, list) else each for each in members], before
    )


def _follower(error_id: str, call: Signature[Any]) -> Follower:
    """The message that is published when a task fails."""
    task, args = call.task, call.args
    first = () if call.immutable else (RESULT_BEFORE,) * task.errback_takes(len(args))
    encoded = task.invocation(
        args, call.kwargs, {**call.options, "id": call.options.get("id", error_id)}, first=first
    )
    body = encoded.body
    if not call.immutable and task.errors_of_each and task.serializer == "json":
        body = {"errback": len(first), "args": list(args), "kwargs": call.kwargs}
    elif not call.immutable:
        if task.serializer != "json" or args or call.kwargs:
            raise UsageError(
                f"link_error: {call!r:.80} is called with the id, the error and the traceback; use"
                " si(…) for arguments of its own"
            )
        body = None
    elif not isinstance(body, dict):
        raise UsageError(f'link_error: the task "{task.name}" has to read JSON')
    return Follower(
        encoded.topic,
        str(encoded.options.get("id")),
        body,
        dict(encoded.options.get("headers") or {}),
        encoded.options.get("key"),
    )


def _is_nothing(part: Part[Any]) -> bool:
    return isinstance(part, Group) and not part.parts


def _part(value: object) -> Part[Any]:
    if not isinstance(value, Part):
        raise UsageError(
            "a flow: expected a call like add.s(1, 2), or a chain or group of calls,"
            f" got {value!r:.80}"
        )
    return value


def copies(values: Iterable[Any]) -> list[Part[Any]]:
    """Copies of parts, which are given one by one or in iterables. Raises UsageError."""
    listed: list[Any] = []
    for each in values:
        if isinstance(each, Part):
            listed.append(each)
        elif not hasattr(each, "__iter__") or isinstance(each, (str, bytes, dict)):
            _part(each)
        else:
            listed += each
    return [_part(each).clone() for each in listed]
