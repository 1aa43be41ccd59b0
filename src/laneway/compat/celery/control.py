"""`app.control` and `app.control.inspect()`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from laneway.errors import UsageError

if TYPE_CHECKING:
    from laneway.compat.celery.application import Celery


class Control:
    """`app.control`: the operations that Laneway supports."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def revoke(self, task_id: str | Sequence[str], terminate: bool = False, **_: object) -> None:
        """Cancel tasks. A running one is always stopped, regardless of `terminate`."""
        del terminate
        for each in [task_id] if isinstance(task_id, str) else task_id:
            self._app.laneway.job(each).cancel()

    def purge(self) -> int:
        """Remove the waiting messages of the application's tasks."""
        topics = {task.template.text for task in self._app.tasks.values()} | {
            self._app.conf.task_default_queue
        }
        return sum(self._app.laneway.topic(topic).purge() for topic in topics)

    def ping(
        self, destination: Sequence[str] | None = None, timeout: float = 1.0, **_: object
    ) -> list[dict[str, dict[str, str]]]:
        """The workers that answer within `timeout` seconds, each as {id: {"ok": "pong"}}."""
        answers = self.inspect(destination, timeout).ping() or {}
        return [{worker: answer} for worker, answer in answers.items()]

    def inspect(
        self, destination: Sequence[str] | None = None, timeout: float = 1.0, **_: object
    ) -> Inspect:
        """What all workers, or those of `destination` (their ids), say about themselves."""
        return Inspect(self._app, destination, timeout)

    def __getattr__(self, name: str) -> Any:
        raise unsupported(f"app.control.{name}")


class Inspect:
    """
    `app.control.inspect()`: what workers say, by the id of each; None if no worker answers.

    Their ids are those of `laneway workers`, and the figures those of their last heartbeats.
    """

    def __init__(self, app: Celery, destination: Sequence[str] | None, timeout: float) -> None:
        self._app, self._destination, self._timeout = app, destination, timeout

    def ping(self, *_: object, **__: object) -> dict[str, dict[str, str]] | None:
        """{"ok": "pong"} of each worker that answers in time."""
        answers = self._app.laneway.control.ping(timeout=self._timeout)
        return {
            worker: {"ok": "pong"}
            for worker, seconds in answers.items()
            if seconds is not None and worker in (self._destination or answers)
        } or None

    def __getattr__(self, name: str) -> Any:
        raise unsupported(f"app.control.inspect().{name}")


def unsupported(what: str) -> UsageError:
    """The error for a command of Celery's control that does not exist here."""
    return UsageError(
        f"{what} is not supported; use `laneway workers`, `ping`, `topics`, `stacks` and `explain`,"
        " or run Celery itself on Laneway: laneway.contrib.kombu"
    )


def rate_of(limit: str | float) -> str | float:
    """Celery's "10/m" as Laneway's "10/min"."""
    if isinstance(limit, (int, float)):
        return limit
    count, _, per = limit.partition("/")
    return f"{float(count):g}/{ {'': 's', 's': 's', 'm': 'min', 'h': 'h'}.get(per, per) }"
