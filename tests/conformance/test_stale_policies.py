"""What a process knows of the policies may be old: it never refuses what they allow by now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laneway.engines.base import Settings
from laneway.errors import BadMessage
from laneway.message import Draft
from tests.conformance.conftest import ENGINES, SHARDED
from tests.conformance.test_reopened import PERSISTENT


@pytest.mark.parametrize("name", PERSISTENT)
@pytest.mark.parametrize(
    ("layer", "pattern", "fields"),
    [
        ("operator", "e.*", {"max_body": 100}),
        ("operator", "e.*", {"ttl": 20}),
        ("code", "e.1", {"max_body": 100, "ttl": 20}),
    ],
)
def test_put_is_checked_against_the_newest_policies(
    name: str, layer: Any, pattern: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    ours, theirs = ((ENGINES | SHARDED)[name](tmp_path, Settings()) for _ in range(2))
    is_size = "max_body" in fields
    allowed = [Draft("e.1", b"12345", delay_us=0 if is_size else 5_000_000)] * 2
    try:
        ours.policy_set("code", "e.*", {"max_body": 4, "ttl": 1} if is_size else {"ttl": 1})
        with pytest.raises(BadMessage):
            theirs.put(allowed)
        ours.policy_set(layer, pattern, fields)
        assert [each.outcome for each in theirs.put(allowed)] == ["accepted"] * 2
    finally:
        ours.close()
        theirs.close()
