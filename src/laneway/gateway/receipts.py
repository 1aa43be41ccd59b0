"""
Receipts: how a client names a lease when it settles it.

A receipt is the lease's handle and fence with a signature, so that nobody settles leases that the
gateway did not give to the same token. All gateways of a namespace sign with the same key, which
they keep in the store; so a lease may be settled at another gateway, and after a restart.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import struct

SIGNATURE_BYTES = 12
"""A guess is right once in 2^96."""

KEY = "receipt key"
"""The name of the key that signs them, as `shared_key` keeps it."""

_NUMBERS = struct.Struct(">QQ")


def key_of(key: bytes, token: str | None) -> bytes:
    """The key that signs the receipts of a token (its id; None: there was none)."""
    return hmac.digest(key, b"token\0" + (token or "").encode(), "sha256")


def write(key: bytes, handle: int, fence: int) -> str:
    """The receipt of a lease. `key`: of the token that leases, from `key_of`."""
    numbers = _NUMBERS.pack(handle, fence)
    signed = numbers + hmac.digest(key, numbers, "sha256")[:SIGNATURE_BYTES]
    return base64.urlsafe_b64encode(signed).decode().rstrip("=")


def read(key: bytes, receipt: str) -> tuple[int, int] | None:
    """The handle and fence of a receipt; None: it is not one of this token's."""
    try:
        signed = base64.urlsafe_b64decode(receipt + "=" * (-len(receipt) % 4))
    except (ValueError, binascii.Error):
        return None
    numbers, signature = signed[: _NUMBERS.size], signed[_NUMBERS.size :]
    expected = hmac.digest(key, numbers, "sha256")[:SIGNATURE_BYTES]
    if len(numbers) < _NUMBERS.size or not hmac.compare_digest(signature, expected):
        return None
    handle, fence = _NUMBERS.unpack(numbers)
    return handle, fence
