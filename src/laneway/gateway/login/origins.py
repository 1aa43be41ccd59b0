"""What a browser reports about a request's origin and protocol."""

from __future__ import annotations

from functools import lru_cache

from laneway.gateway.http import Request

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""The values of `Host` that name the client's own machine, with any port."""

PROXY_HEADERS = frozenset({b"forwarded", b"via", b"x-real-ip"})
"""Headers that proxies add, besides those that begin with `x-forwarded`."""

SAFE_METHODS = frozenset({"GET", "HEAD"})
"""Methods that change nothing."""


def has_local_name(request: Request) -> bool:
    """Whether the client knows the gateway by a name of its own machine, and by no other."""
    return request.count(b"host") == 1 and _is_local(request.header_bytes[b"host"])


@lru_cache(100)
def _is_local(host: bytes) -> bool:
    name, separator, port = host.lower().decode("latin-1").rpartition(":")
    return (name if separator and port.isdigit() else name + separator + port) in LOCAL_NAMES


def is_forwarded(request: Request) -> bool:
    """Whether the request shows that a proxy sends it. nginx sends HTTP/1.0 and no such header."""
    return request.scope.get("http_version") == "1.0" or any(
        name in PROXY_HEADERS or name.startswith(b"x-forwarded") for name in request.header_bytes
    )


def is_secure(request: Request) -> bool:
    """Whether the client uses HTTPS. Behind a proxy, a trusted one decides."""
    return bool(request.scope.get("scheme") == "https")


def is_of_other_site(request: Request) -> bool:
    """Whether a browser sends the request for a page that is not the gateway's own."""
    if (site := request.header(b"sec-fetch-site")) is not None:
        return site not in ("same-origin", "none")
    return request.header(b"origin") is not None and not _has_own_origin(request)


def is_same_origin(request: Request) -> bool:
    """Whether the browser's headers name a page of the gateway itself as the sender."""
    site = request.header(b"sec-fetch-site")
    return _has_own_origin(request) if site is None else site == "same-origin"


def is_navigation(request: Request) -> bool:
    """Whether a person opens a page: by a link, a bookmark or the address bar."""
    return request.method in SAFE_METHODS and request.header(b"sec-fetch-mode") == "navigate"


def is_of_htmx(request: Request) -> bool:
    """Whether htmx sends the request: no form can set the header, nor a page of another origin."""
    return request.header(b"hx-request") == "true"


def _has_own_origin(request: Request) -> bool:
    origin = (request.header(b"origin") or "").lower()
    host = (request.header(b"host") or "").lower()
    return bool(host) and origin in (f"http://{host}", f"https://{host}")
