from __future__ import annotations

import inspect
import re

import pytest

from laneway import errors

CLASSES = [
    each
    for each in vars(errors).values()
    if inspect.isclass(each) and issubclass(each, errors.LanewayError)
]


@pytest.mark.parametrize("error", CLASSES)
def test_kind_is_the_class_name_in_snake_case(error: type[errors.LanewayError]) -> None:
    """Each class has a kind of its own, which HTTP, logs and the CLI use as a stable name."""
    assert vars(error)["kind"] == re.sub(r"(?<=[a-z])(?=[A-Z])", "_", error.__name__).lower()


def test_tree_names_every_class_below_its_base() -> None:
    """The tree in the module's docstring has every class, indented below its base class."""
    tree = (errors.__doc__ or "").split("```")[1]
    drawn: list[tuple[int, str]] = [
        (found.start(), found[0])
        for line in tree.splitlines()
        if (found := re.search(r"[A-Za-z]+", line)) is not None
    ]
    bases = {}
    for n, (depth, name) in enumerate(drawn):
        bases[name] = next((above for at, above in reversed(drawn[:n]) if at < depth), None)
    expected = {
        each.__name__: each.__bases__[0].__name__ if each is not errors.LanewayError else None
        for each in CLASSES
    }
    assert bases == expected
