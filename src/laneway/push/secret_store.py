"""
Secrets as they are stored: encrypted by AES-256-GCM, with a key that only the programs have.

The keys are in `LANEWAY_SECRETS_KEY`, or in the file that `LANEWAY_SECRETS_KEY_FILE` names: 32
bytes each as base64, separated by commas or line ends. The first one encrypts; all of them decrypt,
so a new key is put in front of the old one. Each ciphertext names its key, and belongs to one
topic: it cannot be moved to another endpoint.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
import stat
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from laneway.errors import Refused, UsageError

KEY_VARIABLE, FILE_VARIABLE = "LANEWAY_SECRETS_KEY", "LANEWAY_SECRETS_KEY_FILE"
KEY_BYTES = 32
NONCE_BYTES = 12
PLAIN = "plain"
"""The name of the key of secrets that are stored as they are."""


class SecretStore:
    """
    Encrypts and decrypts secrets with the keys of this process.

    `keys`: by name, the one that encrypts first. `may_be_plain`: whether secrets may be stored as
    they are, because nobody but the store's owner can read it.
    """

    def __init__(self, keys: Mapping[str, bytes], *, may_be_plain: bool = False) -> None:
        self._keys = dict(keys)
        self._may_be_plain = may_be_plain

    @property
    def names(self) -> list[str]:
        """The names of the keys."""
        return list(self._keys)

    def encrypt(self, secret: bytes, topic: str) -> str:
        """A secret as it is stored with the topic's endpoint. Raises Refused without a key."""
        if not self._keys:
            if self._may_be_plain:
                return f"{PLAIN}:{_text(secret)}"
            _aead()  # a key is of no use without the package
            raise Refused(
                f"endpoint {topic}: without a key its secret would be stored in plain text; set"
                f' {KEY_VARIABLE}, as in: export {KEY_VARIABLE}="$(laneway endpoint key)" (or'
                " keep the store in a SQLite file of mode 0600)"
            )
        name, key = next(iter(self._keys.items()))
        nonce = os.urandom(NONCE_BYTES)
        sealed = _cipher(key).encrypt(nonce, secret, topic.encode())
        return f"{name}:{_text(nonce + sealed)}"

    def decrypt(self, stored: str, topic: str) -> bytes:
        """A secret that was stored with the topic's endpoint. Raises Refused if no key fits."""
        name, _, text = stored.partition(":")
        found = base64.b64decode(text)
        if name == PLAIN:
            return found
        key = self._keys.get(name)
        if key is None:
            raise Refused(
                f"endpoint {topic}: its secret needs the key {name}, which {KEY_VARIABLE} of this"
                " process does not have"
            )
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415  # an extra

        try:
            return _cipher(key).decrypt(found[:NONCE_BYTES], found[NONCE_BYTES:], topic.encode())
        except InvalidTag as error:
            raise Refused(
                f"endpoint {topic}: its secret was changed in the store, or belongs to another"
                " topic; rotate it"
            ) from error


def key_name(stored: str) -> str | None:
    """The name of the key that a stored secret needs, or None if it is not encrypted."""
    name = stored.partition(":")[0]
    return None if name == PLAIN else name


def new_key() -> str:
    """A new random key, as `LANEWAY_SECRETS_KEY` takes it."""
    return _text(secrets.token_bytes(KEY_BYTES))


def of_process(url: str) -> SecretStore:
    """The keys in the environment of this process, for the store at `url`. Raises UsageError."""
    text, where = os.environ.get(KEY_VARIABLE, ""), KEY_VARIABLE
    if not text and (path := os.environ.get(FILE_VARIABLE)):
        where = f"{FILE_VARIABLE} {path}"
        try:
            with open(path, encoding="ascii") as file:
                text = file.read()
        except (OSError, ValueError) as error:
            raise UsageError(f"{where}: cannot be read: {error}") from error
    keys = [_read_key(part, where) for part in text.replace(",", "\n").split()]
    return SecretStore(
        {hashlib.sha256(key).hexdigest()[:8]: key for key in keys}, may_be_plain=_is_private(url)
    )


def _read_key(text: str, where: str) -> bytes:
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:  # the text itself is a secret
        raise UsageError(
            f"{where}: expected keys of {KEY_BYTES} bytes as base64, separated by commas; `laneway"
            " endpoint key` prints one"
        )
    return key


def _is_private(url: str) -> bool:
    """Whether only the owner can read the store: SQLite in memory, or in a file of mode 0600."""
    if not url.startswith("sqlite:"):
        return False
    path = url.partition("//")[2].partition("?")[0]
    if not path.strip("/"):
        return True
    path = path.removeprefix("/")
    try:
        return os.path.isfile(path) and not stat.S_IMODE(os.stat(path).st_mode) & 0o077
    except OSError:
        return False


@lru_cache(16)
def _cipher(key: bytes) -> AESGCM:
    return _aead()(key)


def _aead() -> type[AESGCM]:
    try:
        from cryptography.hazmat.primitives.ciphers import aead  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise UsageError(
            "encrypted secrets need the package cryptography; install it: pip install"
            ' "laneway[push]"'
        ) from error
    return aead.AESGCM


def _text(found: bytes) -> str:
    return base64.b64encode(found).decode()


if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
