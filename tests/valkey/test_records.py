"""
The positional records that Python and Lua share have the same fields in the same order.

Each is written down once in each language: here the Lua text is read.
"""

from __future__ import annotations

import re
from pathlib import Path

import laneway.engines.valkey
from laneway.engines.valkey import record_formats
from laneway.policy import FIELDS, Resolved

PARTS = Path(laneway.engines.valkey.__file__).parent / "scripts" / "parts"

LUA_FORMATS = {"I2c0": "s", "I2": "H", "I4": "I", "I8": "Q", "B": "B", "i8": "q", "i4": "i"}
"""What `struct.pack` of Lua calls the formats of Python; `s` stands for counted bytes."""


def text(part: str) -> str:
    return (PARTS / f"{part}.lua").read_text()


def listed(part: str, name: str) -> list[str]:
    """The strings of a list: `local NAME = { 'one', 'two' }`."""
    found = re.search(rf"local {name} = \{{(.*?)\}}", text(part), re.DOTALL)
    assert found is not None, f"{part}.lua has no list {name}"
    return re.findall(r"'(\w+)'", found[1])


def usual_fields(part: str) -> list[str]:
    """The names in the table with the usual values of fields that few records have."""
    return re.findall(r"(\w+) =", found_in(part, r"local USUAL = \{(.*?)\}"))


def assigned(part: str, function: str, call: str) -> list[str]:
    """The names to the left of `= call` in a function, over as many lines as there are."""
    body = re.split(rf"\s=\s+{call}", text(part).split(f"function {function}(", 1)[1])[0]
    found = re.search(r"((?:[\w.]+,\s+)*[\w.]+)$", body)
    assert found is not None, f"{part}.lua: {function} assigns nothing from {call}"
    return [name.rpartition(".")[2] for name in re.split(r",\s+", found[1])]


def python_format(lua: str) -> str:
    """A format of Lua in Python's letters."""
    letters = re.findall("|".join(LUA_FORMATS), lua.removeprefix("<"))
    assert "".join(letters) == lua.removeprefix("<"), f"an unknown letter in {lua}"
    return "".join(LUA_FORMATS[each] for each in letters)


def test_fields_of_a_policy() -> None:
    """policies.lua reads them where `record_formats.policy_record` writes them."""
    in_lua = listed("policies", "FIELDS")
    assert list(record_formats.policy_fields(Resolved())) == in_lua
    for field in FIELDS:
        assert set(record_formats.names_in_lua(field)) <= set(in_lua), field


def test_fields_of_a_message() -> None:
    rare = {*record_formats.Rare.__struct_fields__, "mirrored"}
    assert rare == {*usual_fields("messages"), "lane", "rank"}
    for part, name, known in (
        ("messages", "HEAD", record_formats._HEAD),
        ("putting", "DRAFT", record_formats._DRAFT),
    ):
        found = re.search(rf"local {name} = '>(.*)'\n *local {name}_BYTES = (\d+)", text(part))
        assert found is not None
        format_ = re.sub(r"(\d)q", lambda many: "q" * int(many[1]), known.format)
        assert ">" + python_format(found[1]) == format_
        assert int(found[2]) == known.size


def test_fields_of_a_lease() -> None:
    """The padding ends with the slot of a key, if the lease has one."""
    behind, *fields = assigned("settling", "settling.decode", "unpack_limit")
    assert behind == "behind"
    fields += assigned("settling", "settling.decode", "values_of")
    assert fields == list(record_formats.Held.__struct_fields__)
    rest = re.search(r"function settling\.tail\((.*?)\)", text("settling"), re.DOTALL)
    assert rest is not None
    assert ["fence", "lane", *re.split(r",\s+", rest[1])] == [*fields[:-1], "slot"]


def test_fields_of_a_lane() -> None:
    """The head, the rest, and the fields that few lanes have."""
    *head, rest = assigned("lanes", "decode", "unpack_from")
    assert rest == "rest", "where the head ends"
    *others, behind = assigned("lanes", "decode_rest", "unpack_from")
    assert behind == "behind", "where the rest ends"
    fields = list(record_formats.Lane.__struct_fields__)
    common = [*head, "name", *others]
    assert fields[: len(common)] == common
    assert {*fields[len(common) :]} == {*usual_fields("lanes")} - {*others, "gate"}
    assert head[record_formats._TIER_QUEUE] == "tier_queue"


def test_widths_of_a_lane() -> None:
    """Both languages take the fields of a lane to be as wide."""
    known, rest = record_formats._LANE_HEAD, record_formats._LANE_REST
    assert python_format(found_in("lanes", r"local REST = '(.*?)'")) == rest.format[1:]
    assert python_format(found_in("lanes", r"local HEAD = '(.*?)'")) == (
        known.format.removeprefix("<") + "s"
    )
    assert int(found_in("lanes", r"NEW = \('\\0'\):rep\((\d+)\)")) == known.size + COUNT


COUNT = 2
"""Bytes of the size of counted bytes."""


def found_in(part: str, pattern: str) -> str:
    found = re.search(pattern, text(part), re.DOTALL)
    assert found is not None, f"{part}.lua has no {pattern}"
    return found[1]


def test_fields_of_the_counters() -> None:
    """The settled ones, the tier queues, the lively ones."""
    fields = [*listed("shard", "SETTLED"), "tier_queues", *listed("shard", "LIVELY")]
    assert list(record_formats.Counters.__struct_fields__) == fields


def test_fields_of_a_gate() -> None:
    fields = listed("gates", "FIELDS")
    assert fields == list(record_formats.GateRecord.__struct_fields__)


def test_equal_own_policies_have_one_id() -> None:
    """Whatever the order of their fields: a policy that is read and set again stays as it is."""
    own_id, record = record_formats.own_record(
        {"code": {"tier": "high", "weight": 7.0, "serial": "hold"}}
    )
    same_id, _ = record_formats.own_record(
        {"code": {"serial": "hold", "tier": "high", "weight": 7.0}}
    )
    assert own_id == same_id
    assert record_formats.own_record(record_formats.own_layers(record))[0] == own_id
