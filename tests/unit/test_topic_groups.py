"""Which group a topic belongs to, in Python and in Lua."""

from __future__ import annotations

import pytest

from laneway.errors import BadPolicy
from laneway.policy import FIELDS
from laneway.topic_groups import group_of

GROUPS: list[tuple[str | None, str, str | None]] = [
    (None, "push.acme", None),
    ("all", "push.acme", "all"),
    ("{0}", "push.acme", "push"),
    ("customer.{1}", "push.acme", "customer.acme"),
    ("customer.{1}", "push.acme.orders", "customer.acme"),
    ("{1}-{0}", "push.acme", "acme-push"),
    ("customer.{1}", "push", None),
    ("customer.{1}", "push.", None),
    ("customer.{1}", "push..orders", None),
    ("customer.{2}", "push.acme", None),
    ("customer.{1}", "push.*", None),
    ("{0}", "push.*", "push"),
    ("{1}", "push.acme#audit", "acme"),
    ("{1}", "push.{0}", "{0}"),
    ("{1}", "push.%1", "%1"),
    ("{0}", "", None),
]


@pytest.mark.parametrize(("group", "topic", "expected"), GROUPS)
def test_group_of(group: str | None, topic: str, expected: str | None) -> None:
    assert group_of(group, topic) == expected


@pytest.mark.parametrize("value", ["", "{", "}", "{}", "{x}", "a{-1}", "{128}", "{1", 5, "a\x1db"])
def test_bad_groups_are_refused(value: object) -> None:
    """The error shows the value and what was expected."""
    with pytest.raises((BadPolicy, ValueError), match="expected a"):
        FIELDS["group"][0](value)
