"""`/v1/events`: what happens in the namespace, as it happens."""

from __future__ import annotations

from laneway.gateway.call import Call
from laneway.gateway.http import Stream

SCOPES = {"endpoint": "endpoints", "change": "admin"}
"""Events that need more than the scope `read`."""


async def stream_events(call: Call) -> Stream:
    """
    Show what happens, as server-sent events: `overview` each second; `operation`, each time when
    one is further; with the scope `endpoints` what happens to an `endpoint`, and with the scope
    `admin` each `change` through the API.
    """
    caller = call.caller
    call.services.waits.check(caller)
    kinds = ["operation", *(kind for kind, scope in SCOPES.items() if scope in caller.scopes)]
    events = call.services.feed.events(call.request, caller, kinds)
    return Stream(events, b"text/event-stream")
