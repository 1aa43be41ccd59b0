"""
Laneway in FastAPI, Starlette and Litestar: a lifespan, a dependency, and the dashboard as a page.

    web = FastAPI(lifespan=lifespan(app))
    web.mount("/queue", dashboard(app, who))
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from laneway import Laneway  # Litestar reads the annotation of `provided`
from laneway.contrib.hosted import CHANGE, EVERYTHING, READ, Caller, HostedGateway

__all__ = ["CHANGE", "EVERYTHING", "READ", "Caller", "dashboard", "lifespan", "provide"]

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def lifespan(
    app: Laneway, *, worker: bool | Mapping[str, Any] = False, inner: Lifespan | None = None
) -> Lifespan:
    """
    The lifespan of a web application that uses `app`: it closes `app` at the end.

    Arguments: `worker`: run a worker in the same process and event loop; a dict has its options,
    such as `{"concurrency": 20}`. `inner`: a lifespan of your own, which runs inside.
    """

    @asynccontextmanager
    async def around(web: Any) -> AsyncIterator[Any]:
        try:
            async with AsyncExitStack() as stack:
                if worker is not False:
                    options = {} if worker is True else dict(worker)
                    await stack.enter_async_context(app.worker(**options))
                yield None if inner is None else await stack.enter_async_context(inner(web))
        finally:
            await app.aclose()

    return around


def provide(app: Laneway) -> Callable[[], Laneway]:
    """
    A dependency that is the application: `Depends(provide(app))` of FastAPI, or
    `Provide(provide(app), sync_to_thread=False)` of Litestar. Tests may override it.
    """

    def provided() -> Laneway:
        return app

    return provided


def dashboard(
    app: Laneway, caller_of: Callable[[Mapping[str, Any]], Caller | None]
) -> HostedGateway:
    """
    The dashboard, and the HTTP API, as an ASGI application to be mounted.

    `caller_of`: returns for a request's ASGI scope who sends it, and what they may do:
    `Caller("ann", READ)`, `CHANGE` or `EVERYTHING`, or None to forbid the request. The web
    application's middleware has already run, so `scope["session"]` or `scope["user"]` are set.
    """
    return HostedGateway(app, caller_of)
