"""Templates become pages and fragments. Everything is escaped where it is written."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laneway.admin.fingerprints import line_of
from laneway.engines.base import UNTIL_SIGNALLED_US
from laneway.errors import UsageError
from laneway.gateway.dashboard import words
from laneway.gateway.dashboard.actions import Notice
from laneway.gateway.dashboard.page import Page
from laneway.gateway.dashboard.view import View

if TYPE_CHECKING:
    import jinja2


FILTERS = (
    words.number,
    words.short,
    words.rate,
    words.part,
    words.span,
    words.size,
    words.iso,
    words.moment,
    words.text,
    words.block,
    words.state,
    words.sentence,
    words.kind,
    words.reason_kind,
    words.spark,
    words.bars,
    words.firing,
    words.lines_of_parts,
)


@cache
def environment() -> jinja2.Environment:
    """The templates. Raises UsageError if Jinja2 is not installed."""
    try:
        import jinja2  # noqa: PLC0415  # a program that mounts the API only does not need it
    except ImportError as error:  # pragma: no cover
        raise UsageError(
            "dashboard: jinja2 is not installed; pip install 'laneway[gateway]'"
        ) from error
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters.update({each.__name__: each for each in FILTERS})
    found.globals.update(
        setting=words.setting,
        topic_state=words.topic_state,
        until_signalled_us=UNTIL_SIGNALLED_US,
        line_of=line_of,
    )
    found.globals["ui"] = found.get_template("parts.html").module
    return found


def page_text(
    page: Page,
    view: View,
    menu: Sequence[Page],
    *,
    csrf: str,
    notice: Notice | None = None,
) -> str:
    """A whole page."""
    variables = _variables(page, view, csrf, notice)
    template = environment().get_template(f"{page.name}.html")
    return template.render(
        {
            **variables,
            "page": page,
            "menu": menu,
            "notice": notice,
            "rendered_us": time.time_ns() // 1000,
        }
    )


def fragment_texts(page: Page, view: View) -> dict[str, str]:
    """The fragments of a page. They are the same for all who may see the same, so without CSRF."""
    template = environment().get_template(f"{page.name}.html")
    variables = _variables(page, view, "")
    return {
        name: "".join(template.blocks[name](template.new_context(variables)))
        for name in page.fragments
    }


def _variables(page: Page, view: View, csrf: str, notice: Notice | None = None) -> dict[str, Any]:
    failed = "" if notice is None else notice.failed

    def typed(action: str, name: str, default: str = "") -> str:
        """The value of a field: what was typed in a form that was refused, else the default."""
        return notice.typed.get(name, "") if notice and failed == action else default

    shown = {"view": view, "urls": view.urls, "csrf": csrf, "failed": failed, "typed": typed}
    return {**page.build(view), **shown}


def text_of(name: str, variables: Mapping[str, Any]) -> str:
    """A template that is no page, such as that of problems."""
    return environment().get_template(name).render(variables)
