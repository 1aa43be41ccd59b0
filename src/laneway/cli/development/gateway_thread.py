"""The gateway of `laneway dev`, in its own thread; it continues when the program is replaced."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from typing import Any

from laneway import Laneway
from laneway.errors import UsageError
from laneway.gateway import server
from laneway.gateway.dashboard.dashboard import Dashboard
from laneway.gateway.dashboard.local_login_pages import LocalLoginPages
from laneway.gateway.extension import Extension
from laneway.gateway.gateway import Gateway
from laneway.gateway.login.local_login import LocalLogin
from laneway.gateway.login.sessions import KEY
from laneway.gateway.login.shared_key import shared_key

HOST = "127.0.0.1"
PORTS = 100
"""How many ports are tried, from the one that was asked for."""

STOP_SECONDS = 1
"""How long requests may continue at the end."""


class GatewayThread(threading.Thread):
    """
    Serves a namespace of a store on this machine.

    `use` changes the namespace, which is known only when the program was imported.
    """

    def __init__(self, url: str, namespace: str, port: int, *, has_login: bool) -> None:
        """
        `has_login`: a client needs a login of the terminal, or a token. Raises UsageError if no
        port is free, and what opening the store raises.
        """
        super().__init__(name="laneway-gateway", daemon=True)
        self.prefix = ""
        self.app = self._open(url, namespace)
        # the first namespace's, so that a login holds when the program's one is known
        self._login = LocalLogin(shared_key(self.app.engine, KEY)) if has_login else None
        self._gateway = self._serve_app()
        self._options, self._socket = _listen(port)
        self.port: int = self._socket.getsockname()[1]
        self._server = server.create(self, self._options, self._socket, lambda _: None)

    @property
    def address(self) -> str:
        """Its URL."""
        return f"http://{HOST}:{self.port}"

    def new_login(self) -> str:
        """A URL that logs one browser in, once; the address if none is needed."""
        return self.address if self._login is None else self._login.link(self.address)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request by the gateway of the present namespace."""
        await self._gateway(scope, receive, send)

    def run(self) -> None:
        """Serve until `end`; then close the store."""
        try:
            asyncio.run(self._server.serve())
        finally:
            self._gateway.close()
            self.app.close()

    def use(self, namespace: str) -> None:
        """Serve another namespace from now on."""
        if namespace == self.app.namespace:
            return
        app, gateway = self.app, self._gateway
        self.app = self._open(app.url, namespace)
        self._gateway = self._serve_app()
        gateway.close()
        app.close()

    def end(self) -> None:
        """Begin to stop, from any thread."""
        self._server.stop()

    def stop(self) -> None:
        """End the waiting requests; the server calls it."""
        self._gateway.stop()

    def _serve_app(self) -> Gateway:
        login: list[Extension] = [] if self._login is None else [LocalLoginPages(self._login)]
        pages = [*login, Dashboard(self.app)]
        return Gateway(self.app, extensions=pages, local_login=self._login)

    @staticmethod
    def _open(url: str, namespace: str) -> Laneway:
        app = Laneway(url, namespace=namespace, create=True)
        if not app.engine.capabilities.processes:
            raise UsageError(
                f"dev: {app.runtime.holder.choice} exists in one process only; expected a"
                " store that several processes share, like sqlite:///laneway-dev.db"
            )
        return app


def _listen(first: int) -> tuple[server.Options, socket.socket]:
    """A socket at the first free port."""
    for port in range(first, min(first + PORTS, 65_536)):
        options = server.Options(host=HOST, port=port, stop_seconds=STOP_SECONDS)
        try:
            return options, server.listen(options)
        except UsageError as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
                raise UsageError(f"dev: --port {port} cannot be used: {cause}") from error
    raise UsageError(f"dev: the ports {first} to {port} are taken; name another one with --port")
