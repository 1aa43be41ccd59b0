"""All pages, in the order of the menu."""

from __future__ import annotations

from laneway.gateway.dashboard.pages import (
    audit,
    dead,
    endpoint,
    endpoints,
    fairness,
    future,
    jobs,
    limits,
    message,
    now,
    search,
    store,
    tokens,
    topic,
    topics,
    workers,
)

ALL = (
    now.PAGE,
    topics.PAGE,
    fairness.PAGE,
    limits.PAGE,
    future.PAGE,
    dead.PAGE,
    workers.PAGE,
    endpoints.PAGE,
    jobs.PAGE,
    store.PAGE,
    audit.PAGE,
    tokens.PAGE,
    topic.PAGE,
    message.PAGE,
    endpoint.PAGE,
    search.PAGE,
)

MENU = tuple(page for page in ALL if page.key)
"""The pages in the menu."""

PAGES = {page.path: page for page in ALL}
"""All pages by path."""
