"""All pages, in the order of the menu."""

from __future__ import annotations

from laneway.gateway.dashboard.pages import now, topic, topics

ALL = (now.PAGE, topics.PAGE, topic.PAGE)

MENU = tuple(page for page in ALL if page.key)
"""The pages in the menu."""

PAGES = {page.path: page for page in ALL}
"""All pages by path."""
