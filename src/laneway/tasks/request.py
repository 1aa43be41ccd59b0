"""
`Request`: a run of a task, as the task sees it: `self.request`, or an argument annotated `Request`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from laneway import headers as control, units
from laneway.engines.base import FLOW_HEADER, RESULT_TTL_HEADER
from laneway.message import Lease
from laneway.printable import without_passwords
from laneway.tasks.flow import Signal  # msgspec reads it
from laneway.working.handler import current

PARENT_HEADER, ROOT_HEADER = "laneway-parent", "laneway-root"
"""The ids of the task that made the call, and of the first task of all."""

ETA_HEADER, RETRIES_HEADER = "laneway-eta", control.RETRIES
"""When the call was to start, and its most retries."""

OWN_PREFIX = control.OWN_PREFIX
"""The prefix of headers that only Laneway reads."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """
    One run of a task.

    `id` is the message's; `attempt` is 1 for the first; `deliveries` also counts deliveries that
    were not attempts. `parent_id`: the task that made the call, or the one before it in a flow;
    `root_id`: the first of all (its own id if it is the first). `eta`: when it was due, in ISO
    8601, if the call set a time. `retries_limit`: the maximum number of retries that the call
    allows;
    `is_limited`: the policy's limit is included. `store`: URL and namespace, for a function called
    by name. `before`: the outcomes of the jobs that it waited for. `after`: the ids of the
    calls that wait for it, or None outside a flow. `is_kept`: whether its result is stored.
    """

    id: str
    task: str
    topic: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    attempt: int = 1
    deliveries: int = 1
    priority: int = 0
    key: str | None = None
    headers: dict[str, str] = {}
    published_at: float = 0.0
    parent_id: str | None = None
    root_id: str = ""
    eta: str | None = None
    retries_limit: int | None = None
    is_limited: bool = False
    before: tuple[Signal, ...] = ()
    after: tuple[str, ...] | None = None
    handle: int = 0
    fence: int = 0
    is_kept: bool = False
    each: bool = False
    store: tuple[str, str] | None = None

    def __repr__(self) -> str:
        return without_passwords(msgspec.Struct.__repr__(self))  # a store's URL is in it

    @property
    def retries(self) -> int:
        """How often it failed before."""
        return self.attempt - 1


def current_request() -> Request | None:
    """The run that is executing this code; None outside of a run."""
    run = current()
    return run if type(run) is Request else None


def request_of(
    task: str,
    lease: Lease,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    before: Sequence[Signal] = (),
    after: tuple[str, ...] | None = None,
    each: bool = False,
) -> Request:
    """The run of a lease."""
    headers = lease.headers or {}
    return Request(
        id=lease.id,
        task=task,
        topic=lease.topic,
        args=args,
        kwargs=kwargs,
        attempt=lease.attempt,
        deliveries=lease.deliveries,
        priority=lease.priority,
        key=lease.key,
        headers={name: value for name, value in headers.items() if not name.startswith(OWN_PREFIX)},
        published_at=lease.published_us / units.SECOND,
        parent_id=headers.get(PARENT_HEADER),
        root_id=headers.get(ROOT_HEADER, lease.id),
        eta=headers.get(ETA_HEADER),
        retries_limit=control.retries(headers),
        before=tuple(before),
        after=after,
        handle=lease.handle,
        fence=lease.fence,
        is_kept=RESULT_TTL_HEADER in headers or FLOW_HEADER in headers,
        each=each,
    )


def lineage() -> dict[str, str]:
    """The headers of a call that is made inside a task."""
    calling = current_request()
    return {} if calling is None else {PARENT_HEADER: calling.id, ROOT_HEADER: calling.root_id}
