"""The engine for many machines: Valkey or Redis, one server or a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from laneway.engines.base import Check, FullEngine, Settings
from laneway.errors import UsageError


class _OpenValkey:
    """
    The opener of this engine's schemes. It imports the client library only when it is called, so
    that the error for a missing one says how to install it.
    """

    def __call__(self, url: str, settings: Settings) -> FullEngine:
        """Open or create the namespace on the server that the URL names."""
        with _client_library(url):
            from laneway.engines.valkey.admin import ValkeyEngine  # noqa: PLC0415
        return ValkeyEngine(url, settings)

    def check_server(self, url: str) -> list[Check]:
        """Check the server and the durabilities that it can keep."""
        with _client_library(url):
            from laneway.engines.valkey import doctor  # noqa: PLC0415
        return doctor.check_server(url)


open_valkey = _OpenValkey()


@contextlib.contextmanager
def _client_library(url: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name in ("redis", "hiredis")
        problem = (
            f'the package "{error.name}" of the client library is missing'
            if is_missing
            else f"the client library cannot be used ({error})"
        )
        scheme = url.partition("://")[0]
        raise UsageError(f"engine {scheme}: {problem}; pip install 'laneway[valkey]'") from error
