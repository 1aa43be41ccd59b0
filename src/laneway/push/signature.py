"""Signatures of Standard Webhooks, version 1: https://www.standardwebhooks.com."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import TYPE_CHECKING

from laneway.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

PREFIX = "whsec_"
LEAST_BYTES, MOST_BYTES = 24, 64
REPLAY_HEADER = "webhook-replay-of"
"""The header of a message that says whose `webhook-id` its requests have."""

SHOWN = 4
"""Characters of a secret that are shown."""


def new_secret() -> bytes:
    """A new random secret."""
    return secrets.token_bytes(32)


def text_of(secret: bytes) -> str:
    """A secret as receivers get it: `whsec_…`."""
    return PREFIX + base64.b64encode(secret).decode()


def hint_of(secret: bytes) -> str:
    """The end of a secret's text, which says which one it is."""
    return f"{PREFIX}…{text_of(secret).rstrip('=')[-SHOWN:]}"


def read_secret(text: object) -> bytes:
    """Read `whsec_…`. Raises UsageError, which does not quote it."""
    expected = UsageError(
        f"endpoint: expected a secret to be {PREFIX} and base64 of {LEAST_BYTES} to {MOST_BYTES}"
        " bytes"
    )
    if not isinstance(text, str) or not text.startswith(PREFIX):
        raise expected
    try:
        secret = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise expected from None
    if not LEAST_BYTES <= len(secret) <= MOST_BYTES:
        raise expected
    return secret


def sign(secrets_: Iterable[bytes], webhook_id: str, timestamp: int, body: bytes) -> str:
    """
    The header `webhook-signature` of a request: one signature for each secret.

    Arguments: `timestamp`: of the attempt, Unix seconds.
    """
    signed = b"%b.%d.%b" % (webhook_id.encode(), timestamp, body)
    return " ".join(
        "v1," + base64.b64encode(hmac.digest(secret, signed, "sha256")).decode()
        for secret in secrets_
    )


def webhook_id(message_id: str) -> str:
    """
    The header `webhook-id` of a message: its id, the same in every attempt.

    The specification forbids a dot, and a header takes visible ASCII only: another id is hashed.
    """
    is_plain = message_id.isascii() and message_id.isprintable() and " " not in message_id
    return message_id if is_plain and "." not in message_id else _hashed(message_id)


def _hashed(message_id: str) -> str:
    digest = hashlib.sha256(message_id.encode(errors="surrogatepass")).digest()
    return "m_" + base64.b32encode(digest).decode().rstrip("=").lower()
