"""
A worker's log: one line for each message that ended, bounded in number, and fields in each line of
a handler.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from laneway import DestinationUnavailable, Laneway, Message, Reject, Retry
from laneway.logs import AddFields, add_fields, fields
from laneway.working.outcome_log import LINES_PER_SECOND
from tests.working.support import Running, until

if TYPE_CHECKING:
    from pathlib import Path


def lines(caplog: pytest.LogCaptureFixture, what: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if what in record.getMessage()]


def test_a_line_for_each_message(app: Laneway, caplog: pytest.LogCaptureFixture) -> None:
    """
    A line has the duration of a success, the error and the next attempt of a failure, or the dead
    letter; and the name of a task.
    """
    caplog.set_level(logging.INFO)
    app.policy("*", backoff="1h", retries=3)
    app.policy("last", retries=0)

    @app.handler("*")
    async def handle(message: Message) -> None:
        match message.topic:
            case "failed" | "last":
                raise ValueError("merchant said 500")
            case "again":
                raise Retry("HTTP 503", delay=5)
            case "refused":
                raise Reject("no such customer")
            case "away":
                raise DestinationUnavailable("HTTP 429", retry_after="1h")

    @app.task
    def add(a: int) -> int:
        return a

    add.delay(1)
    for topic in ("fine", "failed", "again", "refused", "away", "last"):
        app.publish(topic, id=topic)
    app.run_worker(burst=True)
    text = "\n".join(lines(caplog, "message "))
    assert re.search(r"message fine in topic fine: succeeded in \d+\.\d{3} s", text)
    assert re.search(r"in topic task\.\S+add: task \S+add succeeded in", text)
    assert re.search(
        r"failed in topic failed: attempt 1 failed: ValueError: merchant said 500"
        r" \(.*test_logs\.py:\d+\); next attempt in 3600\.0 s \(3 left\)",
        text,
    )
    assert (
        "message again in topic again: attempt 1 requested a retry: HTTP 503; next attempt in 5.0 s"
        " (3 left)" in text
    )
    assert "message refused in topic refused: rejected: no such customer; dead letter" in text
    assert "message away in topic away: topic backs off for 3600.0 s: HTTP 429" in text
    levels = {
        record.getMessage().split()[1]: record.levelname
        for record in caplog.records
        if record.getMessage().startswith("message")
    }
    assert (
        levels.items()
        >= {
            "failed": "WARNING",
            "last": "ERROR",
            "refused": "WARNING",
            "again": "INFO",
            "fine": "INFO",
        }.items()
    )
    assert [
        record.exc_info is not None
        for record in caplog.records
        if "message last" in record.getMessage()
    ] == [True]
    assert [
        record.exc_info is not None
        for record in caplog.records
        if "message failed" in record.getMessage()
    ] == [False]


def test_lines_are_bounded(app: Laneway, caplog: pytest.LogCaptureFixture) -> None:
    """
    Of thousands of successes or failures in a second, a hundred each are logged, and the others are
    counted.
    """
    caplog.set_level(logging.INFO)
    app.policy("*", retries=0)

    @app.handler("*")
    async def handle(message: Message) -> None:
        if message.topic == "bad":
            raise ValueError("no")

    app.publish_many([Message("good") for _ in range(3000)] + [Message("bad") for _ in range(1000)])
    began = time.monotonic()
    app.run_worker(burst=True)
    seconds = int(time.monotonic() - began) + 2
    succeeded = lines(caplog, ": succeeded in")
    more = lines(caplog, "more messages succeeded")
    assert LINES_PER_SECOND <= len(succeeded) <= LINES_PER_SECOND * seconds
    assert len(succeeded) + sum(int(line.split()[0].replace(",", "")) for line in more) == 3000
    failed, more = lines(caplog, "attempt 1 failed"), lines(caplog, "more messages failed")
    assert LINES_PER_SECOND <= len(failed) <= LINES_PER_SECOND * seconds
    assert len(failed) + sum(int(line.split()[0].replace(",", "")) for line in more) == 1000


def test_a_worker_without_problems_is_silent_at_warning(
    app: Laneway, caplog: pytest.LogCaptureFixture
) -> None:
    """At level warning a worker without problems logs nothing."""
    caplog.set_level(logging.WARNING)
    app.handler("*")(print)
    app.publish("a")
    app.run_worker(burst=True)
    assert caplog.records == []


@pytest.mark.parametrize("kind", ["async", "thread", "batch"])
def test_each_line_of_a_handler_has_fields(app: Laneway, kind: str) -> None:
    """Message, topic and attempt, with many handlers at once; no fields outside of handlers."""
    log = logging.getLogger("shop")
    log.setLevel(logging.INFO)
    recorded: list[tuple[str, Any]] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            recorded.append((record.getMessage(), record.laneway))  # type: ignore[attr-defined]

    collect = Collect()
    collect.addFilter(AddFields())
    log.addHandler(collect)

    async def ahandle(message: Message) -> None:
        log.info(message.id)
        await asyncio.sleep(0.001)
        log.info(message.id)

    def handle(message: Message) -> None:
        log.info(message.id)

    def batch(messages: list[Message]) -> None:
        log.info("%d", len(messages))

    try:
        app.handler("push.*", batch=50 if kind == "batch" else None)(
            {"async": ahandle, "thread": handle, "batch": batch}[kind]
        )
        app.publish_many(Message(f"push.{n}", id=str(n)) for n in range(50))
        app.run_worker(burst=True)
        log.info("outside")
    finally:
        log.removeHandler(collect)
    assert recorded.pop() == ("outside", {})
    if kind == "batch":
        assert sum(about["messages"] for _, about in recorded) == 50
    else:
        assert {message for message, _ in recorded} == {str(n) for n in range(50)}
        assert all(
            about == {"message": message, "topic": f"push.{message}", "attempt": 1}
            for message, about in recorded
        )
    assert fields() == {}


def test_structlog(app: Laneway) -> None:
    """
    The documented processor adds the fields to structlog's events, and to Laneway's own lines in
    its formatter.
    """
    import structlog
    from structlog.testing import LogCapture

    capture = LogCapture()
    structlog.configure(processors=[add_fields, capture])
    try:

        @app.handler("push.*")
        async def handle(message: Message) -> None:
            structlog.get_logger().info("delivering", merchant=message.topic)

        app.publish("push.acme", id="17")
        app.run_worker(burst=True)
    finally:
        structlog.reset_defaults()
    assert capture.entries == [
        {
            "event": "delivering",
            "merchant": "push.acme",
            "log_level": "info",
            "message": "17",
            "topic": "push.acme",
            "attempt": 1,
        }
    ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[add_fields],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(),
        ],
    )
    record = logging.LogRecord("laneway.worker", logging.INFO, "", 0, "message 17 …", (), None)
    record.laneway = {"message": "17", "topic": "push.acme"}
    assert json.loads(formatter.format(record)) == {
        "event": "message 17 …",
        "message": "17",
        "topic": "push.acme",
    }


def test_an_error_tracker_gets_each_dead_letter_once(app: Laneway) -> None:
    """
    Sentry's integration takes records of level error with their exception: one for each dead
    letter, none for an attempt that is retried.
    """
    events: list[logging.LogRecord] = []

    class Tracker(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            events.append(record)

    tracker = Tracker(logging.ERROR)
    logging.getLogger().addHandler(tracker)
    try:
        app.policy("*", retries=2, backoff=0)

        @app.handler("*")
        def handle(_: Message) -> None:
            raise ValueError("merchant said 500")

        app.publish("a", id="17")
        with Running(app):
            until(lambda: app.topic("a").dead_letters())
            until(lambda: events)
    finally:
        logging.getLogger().removeHandler(tracker)
    (event,) = events
    assert event.exc_info is not None
    assert isinstance(event.exc_info[1], ValueError)
    assert event.laneway == {  # type: ignore[attr-defined]
        "message": "17",
        "topic": "a",
        "attempt": 3,
        "seconds": event.laneway["seconds"],  # type: ignore[attr-defined]
        "error": "ValueError",
    }


SHOP = """
import logging
from laneway import Laneway, Message
app = Laneway("sqlite:///work.db")
app.policy("*", backoff="1h", retries=1)
log = logging.getLogger("shop")

@app.handler("push.*", isolation="process")
def push(message):
    log.warning("from the child")
    raise ValueError("no")

@app.task
def add(a, b): return a + b

app.schedule("nightly", Message("night"), cron="0 3 * * *")
if __name__ == "__main__":
    app.publish("push.acme", id="17")
"""


def worked(tmp_path: Path, *arguments: str) -> list[str]:
    (tmp_path / "shop.py").write_text(SHOP)
    subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, check=True, timeout=60)
    command = [
        sys.executable,
        "-m",
        "laneway",
        "worker",
        "shop:app",
        "--burst",
        "-c",
        "5",
        *arguments,
    ]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stderr.splitlines()


def test_banner_and_last_line(tmp_path: Path) -> None:
    """
    The banner has version, store, handlers, tasks, schedules and how to stop; the last line the
    summary. Times have their zone; asyncio is silent at debug.
    """
    log_lines = worked(tmp_path, "-l", "debug", "--traceback")
    text = "\n".join(log_lines)
    assert re.search(
        r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d INFO    laneway \S+: store"
        r" sqlite:///work.db",
        log_lines[0],
    )
    for expected in (
        "handlers: push.* (push)",
        "tasks: add",
        "schedules: nightly (next at ",
        "concurrency 5",
        "stop with Ctrl-C or SIGTERM",
    ):
        assert expected in text
    assert re.search(r"worker \d+ stopped after \d+\.\d s: 0 done, 1 to be retried", text)
    assert "selector" not in text
    # The traceback of an attempt that is retried, and the place: those of the child.
    assert re.search(r"attempt 1 failed: ValueError: no \(\S+/shop\.py:11\)", text)
    assert re.search(r'File "\S+/shop\.py", line 11, in push', text)
    assert "executors/processes.py" not in text
    assert any(
        re.search(r"from the child \[message 17, topic push.acme, attempt 1\]$", line)
        for line in log_lines
    )


def test_lines_of_child_processes_have_fields(tmp_path: Path) -> None:
    """
    As JSON: message, topic and attempt. Without --traceback, an attempt that is retried has no
    traceback.
    """
    log_lines = [json.loads(line) for line in worked(tmp_path, "--log-json", "--no-traceback")]
    (line,) = [line for line in log_lines if line["event"] == "from the child"]
    assert (line["message"], line["topic"], line["attempt"]) == ("17", "push.acme", 1)
    assert [line["error"] for line in log_lines if "error" in line] == ["ValueError"]
    assert not [line for line in log_lines if "traceback" in line]


def test_a_program_that_sets_up_logging_keeps_it(tmp_path: Path) -> None:
    """`laneway worker` does not change a program's own logging."""
    (tmp_path / "own.py").write_text(
        "import logging\nlogging.basicConfig(format='OWN %(message)s', level=logging.INFO)\n"
        "from laneway import Laneway\napp = Laneway('sqlite:///own.db')\napp.handler('*')(print)\n"
    )
    command = [sys.executable, "-m", "laneway", "worker", "own:app", "--burst"]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert all(line.startswith("OWN ") for line in ended.stderr.splitlines())


def test_control_characters_are_escaped_without_logging_set_up(app: Laneway) -> None:
    """
    A program without a formatter, or with one of its own, gets message and traceback with control
    characters escaped.
    """
    out = io.StringIO()
    plain = logging.StreamHandler(out)
    app.policy("*", retries=0)

    @app.handler("*")
    def handle(message: Message) -> None:
        raise ValueError("\x1b[31mred")

    logger = logging.getLogger("laneway.worker")
    logger.addHandler(plain)
    try:
        app.publish("a")
        app.run_worker(burst=True)
    finally:
        logger.removeHandler(plain)
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().count("\\x1b[31mred") >= 2
    assert "Traceback (most recent call last)" in out.getvalue()
