"""The stylesheet: its tokens are defined and used, and have enough contrast in both themes."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from laneway.gateway.dashboard import rendering

FOLDER = Path(rendering.__file__).parent
STYLE = (FOLDER / "static" / "dashboard.css").read_text()
COLORS = {
    name: (light, dark)
    for name, light, dark in re.findall(
        r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", STYLE
    )
}
"""The colors in the light and in the dark theme."""

GROUNDS = ("ground", "surface", "sunken")
TINTED = ("good-ground", "slow-ground", "bad-ground")
INKS = ("text", "muted", "accent", "bad")
MARKS = ("good", "slow", "bad", "second", "accent", "strong-line")

READ = {
    **{(ink, ground): 4.5 for ink in INKS for ground in GROUNDS},
    **{(ink, ground): 4.5 for ink in ("text", "muted", "accent") for ground in TINTED},
    ("slow", "surface"): 4.5,  # figures
    ("second", "surface"): 4.5,
    ("ground", "accent"): 4.5,  # the main button
    **{(mark, ground): 3.0 for mark in MARKS for ground in GROUNDS},
    **{(f"heat-{step}", "sunken"): 3.0 for step in (4, 5, 6)},
}
"""Text on grounds (WCAG 2.2, 1.4.3), and lines, marks and borders of fields (1.4.11)."""


def luminance(color: str) -> float:
    """WCAG's relative luminance."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio of two colors."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_computed_as_wcag_does() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_contrast(theme: int) -> None:
    """Each pair of an ink and a ground has enough contrast."""
    found = {
        f"{ink} on {ground}": round(contrast(COLORS[ink][theme], COLORS[ground][theme]), 2)
        for ink, ground in READ
    }
    wanted = {f"{ink} on {ground}": least for (ink, ground), least in READ.items()}
    assert not {name: value for name, value in found.items() if value < wanted[name]}


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_steps_of_maps(theme: int) -> None:
    """The first five steps of a map are seen apart: each is further from the ground."""
    steps = [contrast(COLORS[f"heat-{n}"][theme], COLORS["sunken"][theme]) for n in range(1, 6)]
    assert all(later > 1.25 * earlier for earlier, later in pairwise(steps))


def test_properties_are_defined_and_used() -> None:
    """Each custom property that is used is defined, once, and none is defined for nothing."""
    defined = re.findall(r"(?<![\w(-])--([\w-]+):", STYLE)
    used = set(re.findall(r"var\(--([\w-]+)", STYLE))
    assert used == set(defined)
    assert len(defined) == len(set(defined))
    for each in (*(FOLDER / "static").glob("*.js"), *(FOLDER / "templates").glob("*.html")):
        assert not re.search(r"var\(--|--[\w-]+:", each.read_text()), each.name


def test_colors_are_tokens() -> None:
    """No rule has a color of its own, which would not follow the theme."""
    rules = STYLE[STYLE.index(':root[data-theme="dark"]') :]
    assert not re.findall(r"#[0-9a-f]{3,8}\b(?=[^{}]*;)|rgba?\(|hsl\(", rules)
    assert {"text", "muted", "accent", "ground"} <= COLORS.keys()


def test_classes_of_templates_are_styled() -> None:
    """A class that no rule and no script knows is a misspelled one."""
    known = set(re.findall(r"\.([a-zA-Z][\w-]*)", STYLE))
    scripts = "".join(each.read_text() for each in (FOLDER / "static").glob("*.js"))
    unknown: dict[str, set[str]] = {}
    for each in (FOLDER / "templates").glob("*.html"):
        for value in re.findall(r'class="([^"]*)"', each.read_text()):
            for name in re.sub(r"\{[{%].*?[%}]\}", " ", value).split():
                is_beginning = name.endswith("-") and any(each.startswith(name) for each in known)
                if name not in known and name not in scripts and not is_beginning:
                    unknown.setdefault(each.name, set()).add(name)
    assert not unknown
