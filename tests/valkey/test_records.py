"""
The positional records that Python and Lua share have the same fields in the same order.

Each is written down once in each language: here the Lua text is read.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import laneway.engines.valkey
from laneway.engines.valkey import records
from laneway.policy import Resolved

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
    """rules.lua reads them where `records.rule_record` writes them."""
    assert list(records.rule_fields(Resolved())) == listed("rules", "FIELDS")


def test_fields_of_a_message() -> None:
    assert list(records.Rare.__struct_fields__) == [*listed("messages", "RARE"), "rank"]
    for part, name, known in (
        ("messages", "HEAD", records._HEAD),
        ("putting", "DRAFT", records._DRAFT),
        ("putting", "USUAL", records._USUAL_DRAFT),
    ):
        found = re.search(rf"local {name} = '>(.*)'\n *local {name}_BYTES = (\d+)", text(part))
        assert found is not None
        format_ = re.sub(r"(\d)q", lambda many: "q" * int(many[1]), known.format)
        assert ">" + python_format(found[1]) == format_
        assert int(found[2]) == known.size


def test_fields_of_a_lease() -> None:
    """The padding ends with the slot of a key, if the lease has one."""
    fields = assigned("settling", "settling.decode", "values_of")
    assert fields == list(records.Held.__struct_fields__)
    rest = re.search(r"function settling\.tail\((.*?)\)", text("settling"), re.DOTALL)
    assert rest is not None
    assert ["fence", "lane", *re.split(r",\s+", rest[1])] == [*fields[:-1], "slot"]


def test_fields_of_a_lane() -> None:
    """The usual fields, those that few lanes have, and what the beginning has in common."""
    decoded = assigned("lanes", "decode", "unpack_from")
    assert decoded[-1] == "rest", "where the record ends"
    usual = decoded[:-1]
    fields = list(records.Lane.__struct_fields__)
    assert fields == [*usual, "name", *listed("lanes", "RARE"), "flow"]
    assert len(listed("lanes", "RARE")) == records.RARE
    heads = assigned("lane_heads", "lane_heads.write", "unpack_from")
    assert heads[:-1] == usual[: len(heads) - 1], "lane_heads.lua reads the beginning of a record"


LANE_FORMATS = (
    r"LANE_HEAD = '(.*?)'",
    r"SERVED = '(.*?)'",
    r"RECORD = LANE_HEAD \.\. SERVED \.\. '(.*?)'",
)


def test_widths_of_a_lane() -> None:
    """Both languages take the fields of a lane to be as wide."""
    head, served, end = (found_in("lanes", pattern) for pattern in LANE_FORMATS)
    beginning = records._LANE_HEAD.format.removeprefix("<") + "s"
    rest = records._LANE_TAIL.format.removeprefix("<") + "s"
    assert python_format(head) == beginning
    assert python_format(served + end) == rest
    usual = list(records.Lane.__struct_fields__).index("name")
    assert len(beginning + rest) == usual


def test_where_a_lane_has_its_fields() -> None:
    """The positions from 1 on, and the widths, that are stated beside the format."""
    head, served, end = (python_format(found_in("lanes", pattern)) for pattern in LANE_FORMATS)
    fields = assigned("lanes", "decode", "unpack_from")
    place, published, latest, queue, done = map(
        fields.index, ("place", "published", "latest", "tier_queue", "done")
    )
    assert numbers_of("AT") == {
        "place": 1 + width(head[:place]),
        "published": 1 + width(head[:published]),
        "latest": 1 + width(head[:latest]),
        "queue": 1 + width(head),
    }
    assert numbers_of("BYTES") == {
        "done": width(served[: done + 1 - queue]),
        "served": width(served),
        "rest": width(served + end),
    }


def found_in(part: str, pattern: str) -> str:
    found = re.search(pattern, text(part))
    assert found is not None, f"{part}.lua has no {pattern}"
    return found[1]


def width(format_: str) -> int:
    """Bytes of a format, in which counted bytes are none after their size."""
    return struct.calcsize("<" + format_.replace("s", "H"))


def numbers_of(name: str) -> dict[str, int]:
    pairs = re.findall(r"(\w+) = (\d+)", found_in("lanes", rf"local {name} = {{(.*?)}}"))
    return {field: int(number) for field, number in pairs}


def test_fields_of_the_counters() -> None:
    assert list(records.Counters.__struct_fields__) == listed("shard", "COUNTERS")


def test_fields_of_a_gate() -> None:
    fields = assigned("gates", "gates.find", "values_of")
    assert fields == list(records.GateRecord.__struct_fields__)


def test_equal_own_policies_have_one_id() -> None:
    """Whatever the order of their fields: a policy that is read and set again stays as it is."""
    own_id, record = records.own_record({"code": {"tier": "high", "weight": 7.0, "serial": "hold"}})
    same_id, _ = records.own_record({"code": {"serial": "hold", "tier": "high", "weight": 7.0}})
    assert own_id == same_id
    assert records.own_record(records.own_layers(record))[0] == own_id
