"""
Encoding and decoding of calls: JSON, or by the task's choice msgpack or pickle.

The task decides what it reads, never the message: a pickled body is refused by every task that does
not pickle itself.
"""

from __future__ import annotations

import base64
import pickle
from typing import Any, Literal

import msgspec

from laneway import arguments, codec
from laneway.errors import BadMessage, Reject
from laneway.message import Lease

Serializer = Literal["json", "msgpack", "pickle"]
SERIALIZERS = ("json", "msgpack", "pickle")

SERIALIZER_HEADER = "laneway-serializer"
"""The encoding of a body that is not JSON."""

_pack = msgspec.msgpack.Encoder(enc_hook=codec.plain).encode
_unpack = msgspec.msgpack.Decoder().decode


def check(task: str, serializer: object) -> None:
    """Raise UsageError if there is no serializer of that name."""
    arguments.choice(f'task "{task}"', "serializer", serializer, SERIALIZERS)


def encode(
    task: str,
    serializer: Serializer,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    more: dict[str, Any] | None = None,
) -> Any:
    """
    Encode a call as a body for `publish`. Raises BadMessage.

    `more`: fields besides the arguments, always in JSON, since not only the task reads them.
    """
    body: dict[str, Any] = {"args": args, "kwargs": kwargs}
    if serializer == "json":
        return {**body, **more} if more else body
    try:
        written = _pack(body) if serializer == "msgpack" else pickle.dumps(body)
    except Exception as error:  # pickle runs the objects' own code
        raise BadMessage(
            f'task "{task}": {serializer} cannot hold the arguments: {error}'
        ) from error
    return {"call": base64.b64encode(written).decode(), **more} if more else written


def decode(task: str, serializer: Serializer, lease: Lease) -> Any:
    """
    Decode the body of a call. Raises Reject if it is another program's, or not encoded as this task
    reads it.
    """
    written = (lease.headers or {}).get(SERIALIZER_HEADER, "json")
    if written not in ("json", serializer):
        raise Reject(
            f'the body is not a call of task "{task}": it is written as {written!r:.40}, and the'
            f" task reads {serializer}"
        )
    try:
        body = codec.decode(lease.body, lease.headers)
        if written == "json":
            return body
        if isinstance(body, dict):
            body = base64.b64decode(body["call"])
        return _unpack(body) if written == "msgpack" else pickle.loads(body)  # noqa: S301  # the application chose it by name
    except Exception as error:  # whatever a pickle raises
        raise Reject(f'the body is not a call of task "{task}": {error}') from error
