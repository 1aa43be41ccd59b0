"""
Receipts: how a client names a lease when it settles it.

A receipt is the lease's handle and fence with a signature, so that nobody settles leases that the
gateway did not give to the same token. All gateways of a namespace sign with the same key, which
they keep in the store; so a lease may be settled at another gateway, and after a restart.
"""

from __future__ import annotations

import binascii
import hmac
import struct
from hashlib import blake2s

SIGNATURE_BYTES = 12
"""A guess is right once in 2^96."""

KEY = "receipt key"
"""The name of the key that signs them, as `shared_key` keeps it."""

_NUMBERS = struct.Struct(">QQ")
_TO_URL = bytes.maketrans(b"+/", b"-_")


def key_of(key: bytes, token: str | None) -> bytes:
    """The key that signs the receipts of a token, by its id, or None without one."""
    return hmac.digest(key, b"token\0" + (token or "").encode(), "sha256")


def write(key: bytes, handle: int, fence: int) -> str:
    """The receipt of a lease. `key`: of the token that leases, from `key_of`."""
    numbers = _NUMBERS.pack(handle, fence)
    encoded = binascii.b2a_base64(numbers + _signature(key, numbers), newline=False)
    return encoded.translate(_TO_URL, b"=").decode()


def read(key: bytes, receipt: str) -> tuple[int, int] | None:
    """The handle and fence of a receipt, or None if it is not one of this token's."""
    try:
        signed = binascii.a2b_base64(receipt.replace("-", "+").replace("_", "/") + "==")
    except ValueError:  # also what is not ASCII
        return None
    numbers, signature = signed[: _NUMBERS.size], signed[_NUMBERS.size :]
    if len(numbers) < _NUMBERS.size:
        return None
    if not hmac.compare_digest(signature, _signature(key, numbers)):
        return None
    handle, fence = _NUMBERS.unpack(numbers)
    return handle, fence


def _signature(key: bytes, numbers: bytes) -> bytes:
    """A keyed BLAKE2s, which takes a quarter of the time of an HMAC."""
    return blake2s(numbers, key=key, digest_size=SIGNATURE_BYTES).digest()
