"""`/v1/events`: what happens in the namespace, as it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.gateway.http import Stream

if TYPE_CHECKING:
    from laneway.gateway.call import Call


async def stream_events(call: Call) -> Stream:
    """
    Show the namespace each second, as server-sent events `overview`, and each change through the
    API as `operation`, if the caller may read the audit log.
    """
    call.caller.check_everything()
    with_operations = "admin" in call.caller.scopes
    events = call.services.feed.events(call.request, with_operations=with_operations)
    return Stream(events, b"text/event-stream")
