"""Traces, metrics and logs of what a program publishes and handles."""

from __future__ import annotations

import io
import json
import logging
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span
from prometheus_client import CollectorRegistry

from laneway import Laneway, Message, Reject, UsageError
from laneway.metrics import measure
from laneway.tracing import trace
from laneway.working.log_format import JsonLines


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Laneway]:
    with Laneway(f"sqlite:///{tmp_path}/laneway.db", durability="memory") as opened:
        opened.policy("*", backoff=0)
        yield opened


# Traces


@pytest.fixture
def spans() -> Iterator[tuple[TracerProvider, InMemorySpanExporter]]:
    provider, exporter = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider, exporter
    provider.shutdown()


def test_a_trace_goes_from_the_publisher_through_all_runs(
    app: Laneway, spans: tuple[TracerProvider, InMemorySpanExporter]
) -> None:
    provider, exporter = spans
    trace(app, provider)

    @app.task(name="second", topic="t.{number}")
    def second(number: int) -> None:
        assert get_current_span().is_recording()

    @app.task(name="first", retries=1, bind=True)
    async def first(self: Any) -> None:
        if self.request.attempt == 1:
            raise ValueError("once more")
        await second.adelay(5)

    with provider.get_tracer("test").start_as_current_span("request") as request:
        receipt = first.delay()
    app.run_worker(burst=True)
    found = {span.name: span for span in exporter.get_finished_spans()}
    assert sorted(span.name for span in exporter.get_finished_spans()) == [
        "process first",
        "process first",
        "process second",
        "publish first",
        "publish second",
        "request",
    ]
    assert {span.context.trace_id for span in found.values() if span.context} == {
        request.get_span_context().trace_id
    }
    assert found["publish first"].kind is SpanKind.PRODUCER
    assert found["process first"].kind is SpanKind.CONSUMER
    assert dict(found["publish first"].attributes or {}) == {
        "messaging.system": "laneway",
        "messaging.operation.type": "send",
        "messaging.destination.name": "task.first",
        "messaging.message.id": receipt.id,
        "laneway.outcome": "accepted",
    }
    attempts = [span for span in exporter.get_finished_spans() if span.name == "process first"]
    assert [(span.attributes or {})["laneway.attempt"] for span in attempts] == [1, 2]
    assert [span.status.status_code for span in attempts] == [StatusCode.ERROR, StatusCode.UNSET]
    assert all(
        span.parent is not None and span.parent.span_id == found["publish first"].context.span_id
        for span in attempts
    )
    assert found["publish second"].parent is not None
    assert found["publish second"].parent.span_id == attempts[1].context.span_id


def test_streams_and_batches(
    app: Laneway,
    spans: tuple[TracerProvider, InMemorySpanExporter],
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider, exporter = spans
    trace(app, provider)

    @app.handler("push.*", batch=10)
    async def push(messages: list[Message]) -> None: ...

    app.publish_many(Message(f"push.{n}", n) for n in range(10))
    app.run_worker(burst=True)
    published = [span for span in exporter.get_finished_spans() if span.name == "publish push.*"]
    handled = [span for span in exporter.get_finished_spans() if span.name == "process push.*"]
    assert len(published) == 10
    assert sum((span.attributes or {})["messaging.batch.message_count"] for span in handled) == 10  # type: ignore[misc]
    assert {link.context.span_id for span in handled for link in span.links} == {
        span.context.span_id for span in published if span.context
    }
    assert "detach" not in caplog.text


def test_what_is_not_published_is_a_failed_span(
    app: Laneway, spans: tuple[TracerProvider, InMemorySpanExporter]
) -> None:
    provider, exporter = spans
    trace(app, provider)
    with pytest.raises(ValueError, match="JSON"):
        app.publish("t", object())
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR


# Logs


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_what_a_task_logs_says_which_it_is(app: Laneway, kind: str) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    own = logging.getLogger("shop.mail")
    own.addHandler(handler)
    own.setLevel(logging.INFO)

    async def later(number: int) -> None:
        own.info("at %d", number)

    def plain(number: int) -> None:
        own.info("at %d", number)

    task = app.task(name="mail", topic="mail.{number}")(later if kind == "async" else plain)
    receipts = task.map(range(20))
    app.run_worker(burst=True)
    own.info("outside")
    own.removeHandler(handler)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert "task" not in lines.pop()
    logged = sorted(
        (line["event"], line["task"], line["message"], line["topic"], line["attempt"])
        for line in lines
    )
    assert logged == sorted((f"at {n}", "mail", receipts[n].id, f"mail.{n}", 1) for n in range(20))


# Metrics


def test_what_is_counted(app: Laneway) -> None:
    registry = CollectorRegistry()
    assert measure(app, registry=registry) is None

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    @app.handler("push.*")
    async def push(message: Message) -> None:
        assert value("laneway_running", kind="push.*")
        if message.body == "reject":
            raise Reject
        if message.body == "retry" and message.attempt == 1:
            raise OSError

    @app.task(name="batchless")
    def plain() -> None: ...

    for body in ("fine", "reject", "retry"):
        app.publish(f"push.{body}", body)
    app.publish("push.fine", "fine", id="x")
    app.publish("push.fine", "fine", id="x")
    plain.delay()
    app.run_worker(burst=True)
    assert value("laneway_process_published_total", kind="push.*", outcome="accepted") == 4
    assert value("laneway_process_published_total", kind="push.*", outcome="duplicate") == 1
    assert value("laneway_handled_total", kind="push.*", outcome="success") == 3
    assert value("laneway_handled_total", kind="push.*", outcome="retry") == 1
    assert value("laneway_handled_total", kind="push.*", outcome="dead") == 1
    assert value("laneway_failures_total", kind="push.*", error="OSError") == 1
    assert value("laneway_handler_seconds_count", kind="push.*") == 5
    assert value("laneway_waited_seconds_count", kind="push.*") == 4, "first runs only"
    assert value("laneway_running", kind="push.*") == 0
    assert value("laneway_handled_total", kind="batchless", outcome="success") == 1


def test_it_is_served(app: Laneway, caplog: pytest.LogCaptureFixture) -> None:
    """On the next free port, where the one that was named is taken."""
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        with caplog.at_level(logging.INFO):
            port = measure(app, taken.getsockname()[1], registry=CollectorRegistry())
        assert port is not None
        assert port > taken.getsockname()[1]
        app.publish("t.1")
        text = (
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
        )
        assert 'laneway_process_published_total{kind="t.*",outcome="accepted"} 1.0' in text
        assert f"metrics are served on http://127.0.0.1:{port}/metrics" in caplog.text


@pytest.mark.parametrize(
    ("call", "module", "extra"),
    [(trace, "opentelemetry", "otel"), (measure, "prometheus_client", "metrics")],
)
def test_extras_that_are_not_installed(
    app: Laneway, monkeypatch: pytest.MonkeyPatch, call: Any, module: str, extra: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(UsageError, match=rf"pip install 'laneway\[{extra}\]'"):
        call(app)
