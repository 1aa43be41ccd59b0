"""
What changed between two texts, by lines: a page that shows 50 topics gets the lines that changed.

A patch is a list. A number is the place of a line in the text before, a pair of numbers the first
one and how many, and a text is a new line.
"""

from __future__ import annotations

Patch = list[int | list[int] | str]


def patch_of(before: list[str], after: list[str]) -> Patch:
    """The patch that makes `after` of `before`."""
    places: dict[str, list[int]] = {}
    for place, line in enumerate(before):
        places.setdefault(line, []).append(place)
    patch: Patch = []
    expected = 0
    for line in after:
        found = places.get(line)
        if found is None:
            patch.append(line)
            continue
        if expected < len(before) and before[expected] == line:
            place = expected
        else:
            place = found[0]
        expected = place + 1
        _append(patch, place)
    return patch


def _append(patch: Patch, place: int) -> None:
    """Append a line of the text before, as part of the range at the patch's end if it can be."""
    last = patch[-1] if patch else None
    if isinstance(last, list) and sum(last) == place:
        last[1] += 1
    elif isinstance(last, int) and last + 1 == place:
        patch[-1] = [last, 2]
    else:
        patch.append(place)


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
