"""`laneway job`: single calls of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from laneway import Laneway, Task

if TYPE_CHECKING:
    from tests.cli.conftest import Command


def test_show_watch_cancel_requeue(laneway: Command) -> None:
    with Laneway(laneway.url) as app:

        @app.task(name="count", bind=True)
        def count(self: Task[..., Any], upto: int) -> list[int]:
            self.update_state("COUNTING", {"current": upto, "total": upto})
            return [upto]

        @app.task(name="fail", retries=0)
        def fail() -> None:
            raise ValueError("as it stands")

        done, failed, waiting = (
            count.delay(3),
            fail.delay(),
            count.using(delay="1h", id="mine").enqueue(1),
        )
        assert laneway("job", "show", done.id).stdout == "pending in task.count\n"
        app.run_worker(burst=True)
    shown = laneway("job", "show", done.id).stdout
    assert shown.startswith(
        'success in task.count\n  result: [3]\n  progress: {"current":3,"total":3}\n  ended: 20'
    )
    assert laneway.json("job", "show", done.id)["result"] == [3]
    assert (
        "[##############################] 100%  success" in laneway("job", "watch", done.id).stdout
    )
    wrong = laneway("job", "show", failed.id).stdout
    assert wrong.startswith("failure in task.fail\n")
    assert "error: ValueError: as it stands" in wrong
    assert "Traceback" in wrong
    laneway("job", "watch", failed.id, code=1)
    assert "waits again" in laneway("job", "requeue", failed.id).stdout
    assert "is not a dead letter: pending" in laneway("job", "requeue", failed.id, code=1).stderr
    assert (
        "not finished within 0.1 s; it is delayed"
        in laneway(
            "job", "watch", waiting.id, "--topic", "task.count", "--timeout", "0.1s", code=1
        ).stderr
    )
    assert laneway("job", "cancel", "mine", "--topic", "task.count").stdout == "mine is cancelled\n"
    assert (
        "has already ended: cancelled"
        in laneway("job", "cancel", "mine", "--topic", "task.count", code=1).stderr
    )
    assert "job nothing is unknown" in laneway("job", "show", "nothing", code=1).stderr
