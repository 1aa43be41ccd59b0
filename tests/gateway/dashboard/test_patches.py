"""What changed between two texts, by lines."""

from __future__ import annotations

import random

import msgspec

from laneway.gateway.dashboard.collector import Fragment, Patch, patch_of
from tests.seeds import seed_for


def applied(before: list[str], patch: Patch) -> list[str]:
    """The text that a patch makes, as the browser does it in `live.js`."""
    after: list[str] = []
    for each in patch:
        if isinstance(each, str):
            after.append(each)
        elif isinstance(each, int):
            after.append(before[each])
        else:
            after += before[each[0] : sum(each)]
    return after


def test_patches_make_the_text() -> None:
    """The patch makes the second text of the first one, whatever they are."""
    seed = seed_for("LANEWAY_EXAMPLES", "FUZZ_SEED")
    print(f"FUZZ_SEED={seed}")
    draw = random.Random(seed)
    for _ in range(300):
        before = [draw.choice("abcde") for _ in range(draw.randrange(12))]
        after = [draw.choice("abcdef") for _ in range(draw.randrange(12))]
        assert applied(before, patch_of(before, after)) == after, (before, after)


def test_a_patch_has_the_lines_that_changed() -> None:
    """Lines that stay are a range."""
    before = [f"<td>{n}</td>" for n in range(100)]
    after = [*before[:50], "<td>new</td>", *before[51:]]
    assert patch_of(before, after) == [[0, 50], "<td>new</td>", [51, 49]]


def test_a_fragment_is_sent_only_if_it_changed() -> None:
    """A viewer gets the whole text first, then patches, and the whole again if one was missed."""
    fragment = Fragment("list")
    fragment.update("a\nb")
    assert _content(fragment.since(0)) == "a\nb"
    assert fragment.since(1) == b""
    fragment.update("a\nb")
    assert fragment.since(1) == b""
    fragment.update("a\nc")
    assert _content(fragment.since(1)) == [0, "c"]
    fragment.update("a\nd")
    assert _content(fragment.since(1)) == "a\nd"


def _content(event: bytes) -> object:
    return msgspec.json.decode(event.partition(b"data: ")[2])
