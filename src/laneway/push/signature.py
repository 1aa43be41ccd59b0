"""Signatures of Standard Webhooks, versions 1 and 1a: https://www.standardwebhooks.com."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from laneway.errors import UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PREFIX, PRIVATE_PREFIX, PUBLIC_PREFIX = "whsec_", "whsk_", "whpk_"
LEAST_BYTES, MOST_BYTES = 24, 64
SEED_BYTES = 32
BLOCK = 64
"""Bytes of a block of SHA-256."""

REPLAY_HEADER = "webhook-replay-of"
"""A message's header that names the message whose `webhook-id` its requests have."""

SHOWN = 4
"""Characters of a secret that are shown."""

ED25519 = "ed25519"
"""Given as a secret: a new key of this kind."""


class Key(NamedTuple):
    """
    A signing key: a secret that the receiver has too (`v1`), or the seed of an ed25519 key; the
    receiver has its public key (`v1a`).
    """

    secret: bytes
    is_ed25519: bool = False

    @property
    def text(self) -> str:
        """What the receiver gets: the secret, `whsec_…`, or the public key, `whpk_…`."""
        if self.is_ed25519:
            public = _private_key(self.secret).public_key().public_bytes_raw()
            return PUBLIC_PREFIX + base64.b64encode(public).decode()
        return PREFIX + base64.b64encode(self.secret).decode()

    @property
    def hint(self) -> str:
        """Text that identifies the key: the end of a secret, or the whole public key."""
        if self.is_ed25519:
            return self.text
        return f"{PREFIX}…{self.text.rstrip('=')[-SHOWN:]}"

    def signer(self) -> Signer:
        """What signs requests."""
        return _ed25519_signer(self.secret) if self.is_ed25519 else _hmac_signer(self.secret)


Signer = Callable[[bytes], bytes]
"""Returns the signature of what is signed, with its version."""


def new_key(*, is_ed25519: bool = False) -> Key:
    """A new random key."""
    return Key(secrets.token_bytes(SEED_BYTES), is_ed25519)


def read_key(text: object) -> Key:
    """Read `whsec_…` or `whsk_…`; `ed25519` is a new key. Raises UsageError, without quoting it."""
    if text == ED25519:
        return new_key(is_ed25519=True)
    expected = UsageError(
        f"endpoint: expected a secret to be {PREFIX} and base64 of {LEAST_BYTES} to {MOST_BYTES}"
        f' bytes, {PRIVATE_PREFIX} and a private key, or "{ED25519}" for a new one'
    )
    if not isinstance(text, str) or not text.startswith((PREFIX, PRIVATE_PREFIX)):
        raise expected
    prefix, _, encoded = text.partition("_")
    try:
        found = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise expected from None
    if f"{prefix}_" == PRIVATE_PREFIX:
        if len(found) not in (SEED_BYTES, 2 * SEED_BYTES):  # the seed, or seed and public key
            raise expected
        return Key(found[:SEED_BYTES], is_ed25519=True)
    if not LEAST_BYTES <= len(found) <= MOST_BYTES:
        raise expected
    return Key(found)


def sign(signers: Iterable[Signer], webhook_id: bytes, timestamp: int, body: bytes) -> bytes:
    """
    The header `webhook-signature` of a request: one signature of each key.

    Arguments: `timestamp`: of the attempt, Unix seconds.
    """
    signed = b"%b.%d.%b" % (webhook_id, timestamp, body)
    return b" ".join([signer(signed) for signer in signers])


_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))


def _hmac_signer(secret: bytes) -> Signer:
    """
    HMAC-SHA256 (RFC 2104) with the key's two blocks hashed beforehand: a third of the time of
    `hmac.digest`.
    """
    padded = secret.ljust(BLOCK, b"\0")
    inner, outer = (
        hashlib.sha256(padded.translate(_INNER)),
        hashlib.sha256(padded.translate(_OUTER)),
    )

    def sign(signed: bytes) -> bytes:
        first, second = inner.copy(), outer.copy()
        first.update(signed)
        second.update(first.digest())
        return b"v1," + binascii.b2a_base64(second.digest(), newline=False)

    return sign


def _ed25519_signer(seed: bytes) -> Signer:
    key = _private_key(seed)
    return lambda signed: b"v1a," + base64.b64encode(key.sign(signed))


def _private_key(seed: bytes) -> Ed25519PrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise UsageError(
            'keys of ed25519 need the package cryptography; install it: pip install "laneway[push]"'
        ) from error
    return ed25519.Ed25519PrivateKey.from_private_bytes(seed)


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
