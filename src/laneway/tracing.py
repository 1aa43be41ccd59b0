"""
Traces for OpenTelemetry, from the publisher to the handler: `trace(app)`. Needs
`pip install 'laneway[otel]'`.

A message carries the publisher's span as W3C trace context in its headers. The handler's span is a
child of it, even after retries and in another process.
"""

from __future__ import annotations

from collections.abc import Generator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec

from laneway.app import Laneway
from laneway.errors import UsageError
from laneway.message import Message, Receipt
from laneway.working.handler import kind_of

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider


def trace(app: Laneway, provider: TracerProvider | None = None) -> None:
    """
    Record a span for every message that the application publishes and handles in this process.

    A span is named after the task, or the pattern one level above the topic, so that a million
    topics are not a million names; the topic is an attribute. A batch handler's span links to the
    spans of its messages.

    Arguments: `provider`: default the program's (`opentelemetry.trace.set_tracer_provider`).

    Raises UsageError if OpenTelemetry is not installed.
    """
    try:
        from opentelemetry import propagate, trace as otel  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise UsageError(
            "trace: OpenTelemetry is not installed; pip install 'laneway[otel]'"
        ) from error
    tracer = otel.get_tracer("laneway", version("laneway"), provider)

    def about(message: Message, operation: str) -> dict[str, Any]:
        return {
            "messaging.system": "laneway",
            "messaging.operation.type": operation,
            "messaging.destination.name": message.topic,
        }

    @app.around_publish
    def publishing(message: Message) -> Generator[Message, Receipt, None]:
        # Not the current span: a stream has many open spans, and they end in another order.
        span = tracer.start_span(
            f"publish {kind_of(message)}",
            kind=otel.SpanKind.PRODUCER,
            attributes=about(message, "send"),
        )
        headers = dict(message.headers or {})
        propagate.inject(headers, otel.set_span_in_context(span))
        try:
            receipt = yield msgspec.structs.replace(message, headers=headers)
            span.set_attributes(
                {"messaging.message.id": receipt.id, "laneway.outcome": receipt.outcome}
            )
        except BaseException as error:
            span.record_exception(error)
            span.set_status(otel.StatusCode.ERROR, str(error))
            raise
        finally:
            span.end()

    @app.around_handling
    def handling(subject: Message | list[Message]) -> Generator[None, None, None]:
        messages = subject if isinstance(subject, list) else [subject]
        first = messages[0]
        contexts = [propagate.extract(message.headers or {}) for message in messages]
        attributes = about(first, "process") | {
            "messaging.message.id": first.id or "",
            "laneway.attempt": first.attempt,
        }
        links = []
        if isinstance(subject, list):
            attributes["messaging.batch.message_count"] = len(messages)
            links = [
                otel.Link(otel.get_current_span(context).get_span_context()) for context in contexts
            ]
        with tracer.start_as_current_span(
            f"process {kind_of(first)}",
            None if links else contexts[0],
            otel.SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        ):
            yield
