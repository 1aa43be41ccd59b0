"""`Host`: what tasks, jobs, flows and topics need from their application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableMapping, Sequence
    from concurrent.futures import Executor
    from typing import Never, Unpack

    from laneway.engines.base import FullEngine
    from laneway.message import Message, Receipt
    from laneway.policy import PolicyOptions
    from laneway.producing.producer import Producer
    from laneway.producing.publish_options import PublishOptions
    from laneway.subscriptions import Kind, Start, Where
    from laneway.tasks.waiter import ResultWaiter
    from laneway.units import Duration
    from laneway.working.handler import Handlers


class Host(Protocol):
    """An application as its tasks see it. `Laneway` is one; a test may pass another."""

    @property
    def engine(self) -> FullEngine:
        """The engine, opened at first use. Raises EngineUnavailable."""
        ...

    @property
    def url(self) -> str:
        """The engine's URL."""
        ...

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        ...

    @property
    def eager(self) -> bool:
        """Whether tasks run where they are called instead of being published (in tests)."""
        ...

    @property
    def result_ttl(self) -> float:
        """Seconds for which results are stored unless a task or call sets another time."""
        ...

    @property
    def failure_ttl(self) -> float:
        """Seconds for which failures are stored unless a task or call sets another time."""
        ...

    @property
    def threads(self) -> Executor:
        """Threads for the blocking calls of coroutines."""
        ...

    @property
    def progress_thread(self) -> Executor:
        """One thread that writes the progress of coroutines, in the order of their reports."""
        ...

    @property
    def handlers(self) -> Handlers:
        """The program's handlers; a task registers its own there."""
        ...

    @property
    def named_tasks(self) -> MutableMapping[str, Any]:
        """Cache of the tasks that belong to functions called by name, by their task header."""
        ...

    @property
    def result_waiter(self) -> ResultWaiter:
        """Notifies of changes of jobs."""
        ...

    @property
    def limits_backlog(self) -> bool:
        """Whether the namespace as a whole has a backlog limit."""
        ...

    @property
    def producer(self) -> Producer:
        """Publishes the program's messages."""
        ...

    def known_topics(self) -> list[str]:
        """The topics of the program's tasks and queues, without those that depend on arguments."""
        ...

    def policy(self, pattern: str, /, **fields: Unpack[PolicyOptions]) -> None:
        """Set fields of a policy. Raises BadPolicy."""
        ...

    def subscribe(
        self,
        pattern: str,
        name: str,
        *,
        kind: Kind = "shared",
        start: Start = "now",
        where: Where | None = None,
        expires: Duration | None = None,
        **unknown: Never,
    ) -> None:
        """Declare a subscription. Raises BadPolicy, UsageError."""
        ...

    def unsubscribe(self, pattern: str, name: str) -> int:
        """Remove a subscription. Returns how many messages were removed. Raises Refused."""
        ...

    def publish(
        self,
        topic: str,
        body: Any = None,
        *,
        timeout: Duration | None = None,
        **options: Unpack[PublishOptions],
    ) -> Receipt:
        """Publish one message. Raises BadMessage, BacklogFull, EngineUnavailable."""
        ...

    async def apublish(
        self,
        topic: str,
        body: Any = None,
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109  # as in Laneway.apublish
        **options: Unpack[PublishOptions],
    ) -> Receipt:
        """Publish one message and await its receipt."""
        ...

    def publish_many(
        self,
        messages: Iterable[Message],
        *,
        progress: bool | None = None,
        timeout: Duration | None = None,
    ) -> list[Receipt]:
        """Publish messages in batches; returns their receipts in the same order."""
        ...

    def publish_flow(self, messages: Sequence[Message], *, sticky: bool = False) -> list[Receipt]:
        """Publish a flow's messages apart from others; up to 1,000 in one call of the engine."""
        ...
