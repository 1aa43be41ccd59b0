"""The order of programs' versions."""

from __future__ import annotations

import itertools

import pytest

from laneway import versions
from laneway.errors import UsageError

IN_ORDER = (
    "0.9",
    "1.0.dev1",
    "1.0a1",
    "1.0a2",
    "1.0b1",
    "1.0rc1",
    "1.0",
    "1.0.post1",
    "1.0.1",
    "1.2",
    "1.2-3-gdeadbee",
    "v1.10",
    "1.10.0.1",
    "2",
    "17",
    "2026.11.21",
    "2026-11-21T10:00:00Z",
    "2026-11-22",
    "2026.11.22+3",
    "20261123",
)


def test_versions_are_ordered_by_their_numbers() -> None:
    """Each version in the list is older than all after it."""
    for older, newer in itertools.combinations(IN_ORDER, 2):
        assert versions.is_older(older, newer), (older, newer)
        assert not versions.is_older(newer, older), (older, newer)


@pytest.mark.parametrize(
    ("one", "other"), [("1", "1.0"), ("1.0.0", "v1"), ("1.0rc1", "1.0-rc.1"), ("3", "3")]
)
def test_equal_versions_in_different_spellings(one: str, other: str) -> None:
    assert not versions.is_older(one, other)
    assert not versions.is_older(other, one)


def test_a_missing_version_has_no_order() -> None:
    assert not versions.is_older(None, "1")
    assert not versions.is_older("1", None)


def test_integers_are_versions() -> None:
    assert versions.check(17) == "17"
    assert versions.check(None) is None


@pytest.mark.parametrize(
    "version",
    ["a3f9c1d", "3f9c1a", "", "latest", "x" * 200, "1" * 200, True, 1.5, "1.0;2", "1\n2", ["1"]],
)
def test_version_without_an_order_is_refused(version: object) -> None:
    """A commit's hash has no order."""
    with pytest.raises(UsageError, match="version"):
        versions.check(version)  # type: ignore[arg-type]
