"""An ASGI application behind a server or framework of threads: its event loop is in one of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any

Scope = dict[str, Any]
Application = Callable[[Any, Any, Any], Awaitable[None]]

MAX_WAITING = 16
"""Parts of an answer that wait for the client."""


class LoopThread:
    """An event loop in a thread, which starts with the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="laneway-pages", daemon=True
                ).start()
            return self._loop

    def begin(self, application: Application, scope: Scope, body: bytes) -> Exchange:
        """Begin a request; returns when its answer has begun."""
        exchange = Exchange(self.loop, body)
        begun = exchange.begin(application, scope)
        asyncio.run_coroutine_threadsafe(begun, self.loop).result()
        return exchange


class Exchange:
    """A request and its answer. `status`, `headers`: of the answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, body: bytes) -> None:
        self.status = 500
        self.headers: list[tuple[str, str]] = []
        self._loop = loop
        self._body: bytes | None = body
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_WAITING)
        self._gone = asyncio.Event()

    async def begin(self, application: Application, scope: Scope) -> None:
        """Run the application until its answer begins. Raises what it raises before."""
        self._begun: asyncio.Future[None] = self._loop.create_future()
        self._task = self._loop.create_task(self._run(application, scope))
        await self._begun

    async def _run(self, application: Application, scope: Scope) -> None:
        try:
            await application(scope, self._receive, self._send)
        except Exception as error:
            if self._begun.done():
                raise
            self._begun.set_exception(error)
        finally:
            await self._put(None)

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [
                (name.decode("latin-1"), value.decode("latin-1"))
                for name, value in message.get("headers", ())
            ]
            self._begun.set_result(None)
        elif message.get("body"):
            await self._put(message["body"])

    async def _put(self, part: bytes | None) -> None:
        """Hand on a part; nobody waits for those of a client that has gone."""
        gone = self._loop.create_task(self._gone.wait())
        put = self._loop.create_task(self._parts.put(part))
        await asyncio.wait({gone, put}, return_when=asyncio.FIRST_COMPLETED)
        gone.cancel()
        put.cancel()

    def parts(self) -> Iterator[bytes]:
        """The parts of the answer; closing it ends the request."""
        try:
            while (part := self._submit(self._parts.get()).result()) is not None:
                yield part
        finally:
            self.close()

    async def aparts(self) -> AsyncIterator[bytes]:
        """As `parts`, on another event loop."""
        try:
            while (part := await asyncio.wrap_future(self._submit(self._parts.get()))) is not None:
                yield part
        finally:
            self.close()

    def _submit(self, call: Coroutine[Any, Any, bytes | None]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def close(self) -> None:
        """The client has gone, or has the whole answer."""
        self._loop.call_soon_threadsafe(self._gone.set)
