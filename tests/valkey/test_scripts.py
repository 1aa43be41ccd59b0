"""What the scripts repeat is what Python says."""

from __future__ import annotations

import random
import re
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

import laneway.engines.valkey
from laneway.engines import base, open_engine
from laneway.engines.base import Settings
from laneway.engines.sharded.splitting import FIRST_CALL
from laneway.engines.shared import adaptive, fairness, refusals, size_classes
from laneway.engines.valkey import record_formats, scripts
from laneway.message import Draft, Settlement
from laneway.policy import FOREVER
from laneway.testing.servers import Server
from laneway.topic_groups import group_of

SEED = 5
PARTS = Path(laneway.engines.valkey.__file__).parent / "scripts" / "parts"


def text(part: str) -> str:
    return (PARTS / f"{part}.lua").read_text()


def number(part: str, name: str) -> str:
    """What a script sets a name to."""
    names, values = next(
        (names, values)
        for names, values in re.findall(r"local ([A-Z_, ]+) = ([^\n]+)", text(part))
        if name in names.split(", ")
    )
    return values.partition(" --")[0].split(", ")[names.split(", ").index(name)].strip()


def test_reasons_of_dead_letters() -> None:
    found = text("messages")
    for reason in (
        refusals.DROPPED,
        refusals.EXPIRED,
        refusals.REFUSED,
        refusals.NO_HANDLER,
        refusals.STARTED_AND_LOST,
        refusals.RETRIES_USED_UP,
        refusals.AT_MOST_ONCE,
    ):
        assert f"'{reason}'" in found


def test_numbers() -> None:
    assert int(number("shard", "LAYOUT")) == record_formats.LAYOUT
    assert int(number("fairness", "TICKS")) == fairness.TICKS
    assert int(number("fairness", "VT_SCALE")) == fairness.VT_SCALE
    assert int(number("fairness", "MOST_TAT")) == fairness.MOST_TAT
    assert int(number("fairness", "CHUNK")) == fairness.CHUNK
    assert int(number("fairness", "FEW_LANES")) == fairness.FEW_LANES
    assert int(number("fairness", "CARRY_SCALE")) == fairness.CARRY_SCALE
    assert int(number("messages", "HISTORY")) == refusals.HISTORY
    assert int(number("messages", "FOREVER")) == FOREVER
    assert int(number("merging", "MAX_WAIT_WINDOWS")) == refusals.MAX_WAIT_WINDOWS
    assert int(number("serving", "STEP")) == refusals.STEP
    assert int(number("tallies", "MOST")) == base.MAX_TALLIES
    assert number("tallies", "OTHER") == f"'{base.OTHER_PATTERNS}'"
    bounds = re.search(r"BOUNDS = \{([^}]+)\}", text("tallies"))
    assert bounds is not None
    assert tuple(map(int, bounds[1].split(","))) == base.WAIT_BOUNDS_US
    for name in (
        "FIRST_LIMIT",
        "SLOW",
        "SLOW_WINDOWS",
        "SHRINK_TO",
        "SHRINK_OF",
        "HOLD_WINDOWS",
        "FOLLOWS",
        "FOLLOWS_OF",
        "FIRST",
        "GREW",
        "SLOWER",
        "UNAVAILABLE",
    ):
        assert int(number("adaptive", name)) == getattr(adaptive, name), name
    assert int(number("adaptive", "FLOW_KEPT")) == adaptive.KEPT_US
    assert int(number("adaptive", "MEDIAN_STEP")) == 1 << adaptive.STEP_SHIFT
    assert "OVERLOADS = { timeout = 3, answer = 4 }" in text("adaptive")
    assert adaptive.OVERLOADS == {"timeout": 3, "answer": 4}
    fields = re.findall(r"'(\w+)'", text("adaptive").partition("FIELDS = {")[2].partition("}")[0])
    assert tuple(fields) == adaptive.Flow.__struct_fields__
    seconds = {"SECOND": 1_000_000}
    answers = [
        (("settling", "BACK_OFF_FIRST"), base.BACK_OFF_FIRST_US),
        (("settling", "BACK_OFF_MAX"), base.BACK_OFF_MAX_US),
        (("settling", "UNHANDLED_FIRST"), base.UNHANDLED_FIRST_US),
        (("settling", "UNHANDLED_MAX"), base.UNHANDLED_MAX_US),
        (("ids", "STICKY"), base.STICKY_US),
        (("backlog", "MOST_SPARE_DROPS"), base.MOST_SPARE_DROPS),
        (("lanes", "LINGER"), refusals.LINGER_US["messages"]),
        (("lanes", "LINGER_BY_TIME"), refusals.LINGER_US["time"]),
        (("lanes", "DEFAULT_MEAN"), refusals.DEFAULT_MEAN_US),
        (("lanes", "RATE_WINDOW"), size_classes.WINDOW_US),
    ]
    for where, value in answers:
        assert eval(number(*where), {}, seconds) == value, where


def test_the_arithmetic_is_the_same_number_for_number() -> None:
    """
    Formulas of fairness.py and of fairness.lua, on a real server, over numbers that are hard to
    round.
    """
    script = "\n".join(
        [
            "local max, min, floor = math.max, math.min, math.floor",
            (
                "local function round(number) local whole = math.floor(number) local rest = number"
                " - whole"
            ),
            (
                "if rest > 0.5 or (rest == 0.5 and whole % 2 == 1) then return whole + 1 end return"
                " whole end"
            ),
            (
                "local function part(define) local functions = {} define(functions) return"
                " functions end"
            ),
            text("fairness"),
            (
                "local answers = {} for n = 1, #ARGV, 3 do local rate, tat, now ="
                " tonumber(ARGV[n]), tonumber(ARGV[n + 1]), tonumber(ARGV[n + 2])"
            ),
            (
                "local step = fairness.interval(rate) local seven, three = fairness.depth(step, 7),"
                " fairness.depth(step, 3.25)"
            ),
            (
                "answers[#answers + 1] = string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f"
                " %.0f', step,"
                " fairness.permits(tat, now, step, seven),"
            ),
            (
                "fairness.next_permit(tat, now, step, three, 1),"
                " fairness.next_permit(tat, now, step, seven, 5),"
                " fairness.admits(tat, now, step, seven, 9) and 1 or 0,"
                " fairness.rebase(tat, now, step, three, 8), fairness.stride(7, rate),"
                " fairness.stride_of_work(now % 1000003, rate),"
            ),
            "fairness.size_class(now % 100000)) end return answers",
        ]
    )
    cases = [
        (rate, tat, now)
        for rate in (0.03, 0.5, 1.0, 3.0, 7.5, 10_000.0)
        for now in (1_795_000_000_123_457, 2_200_000_000_999_999)
        for tat in (0, now * 4 - 1, now * 4 + 3, now * 4 + 4_000_000_001)
    ]
    with Server() as server:
        answers = server.run("EVAL", script, 0, *(each for case in cases for each in case))
    for (rate, tat, now), line in zip(cases, answers, strict=True):
        expected = (
            fairness.interval(rate),
            fairness.permits(tat, now, rate, 7),
            fairness.next_permit_us(tat, now, rate, 3.25),
            fairness.next_permit_us(tat, now, rate, 7, 5),
            fairness.admits(tat, now, rate, 7, 9),
            fairness.rebase(tat, now, rate, 3.25, 8),
            fairness.stride(7, rate),
            fairness.stride_of_work(now % 1000003, rate),
            size_classes.size_class(now % 100000) or 0,
        )
        assert [int(each) for each in line.split()] == list(expected), (rate, tat, now)


def test_names_of_groups_are_the_same() -> None:
    """`group_of` in Python and `name_for` in groups.lua, on a real server."""
    script = "\n".join(
        [
            "local find_in, match, sub = string.find, string.match, string.sub",
            "local function at_next_begin() end local TIER_QUEUES = {}",
            "local function part(define) local functions = {} define(functions)",
            "return functions end",
            text("groups"),
            "local answers = {} for n = 1, #ARGV, 2 do",
            "answers[n] = groups.name_for(ARGV[n], ARGV[n + 1]) or ''",
            "answers[n + 1] = groups.name_for(ARGV[n], ARGV[n + 1]) or '' end return answers",
        ]
    )
    long = ".".join(map(str, range(40)))
    topics = ["a", "a.b", "a.b.c", "a..c", "a.b#s", "a.b#s.t", "#s", "a.*", "*", long, f"{long}#s"]
    templates = ["all", "{0}", "x.{1}", "{1}-{0}.", "{1}{1}", "{2}", "{15}", "{16}", "{39}", "{40}"]
    cases = [(template, topic) for template in [*templates, "a{b"] for topic in topics]
    with Server() as server:
        answers = server.run("EVAL", script, 0, *(each for case in cases for each in case))
    for n, (template, topic) in enumerate(cases):
        expected = group_of(template, topic) or ""
        assert answers[2 * n : 2 * n + 2] == [expected, expected], (template, topic)


def test_adaptive_limits_are_the_same_number_for_number() -> None:
    """A lane's flow in adaptive.py and in adaptive.lua, on a real server, after random ends."""
    chance = random.Random(SEED)
    listing = re.search(r"local function values_in\(.*?\nend\n", text("shard"), re.DOTALL)
    assert listing is not None
    script = "\n".join(
        [
            "local function part(define) local functions = {} define(functions)",
            "return functions end",
            listing[0],
            text("adaptive"),
            "local policy = { least = tonumber(ARGV[1]), most = tonumber(ARGV[2]) }",
            "local flow, answers = adaptive.begin(0), {}",
            "for n = 3, #ARGV, 4 do",
            "local leased, here = tonumber(ARGV[n]), adaptive.limit(flow, policy)",
            "adaptive.delivered(flow, leased, here)",
            "local out_of = (n + 1) % 8 == 4 and here",
            "here = adaptive.part_of(here, math.min(leased, here), policy.most, out_of)",
            "answers[#answers + 1] = adaptive.bears(flow, n, policy) and 1 or 0",
            "local overload = ARGV[n + 2] ~= '' and ARGV[n + 2]",
            "local took = tonumber(ARGV[n + 3])",
            "adaptive.settled(flow, policy, here, n, n + 40, ARGV[n + 1], overload, took, n)",
            "for _, each in ipairs(values_in(adaptive.FIELDS, flow)) do",
            "answers[#answers + 1] = each end",
            "answers[#answers + 1] = adaptive.limit(flow, policy) end return answers",
        ]
    )
    with Server() as server:
        for least, most in [(1, 64), (3, 7), (1, 1)]:
            latency = 1_000
            ends: list[tuple[int, str, str, int]] = []
            for _ in range(1_500):
                latency = round(latency * chance.choice([1, 1, 1, 1, 1, 1, 1.1, 0.9, 4, 0.25])) + 1
                action = chance.choice(["ack"] * 200 + ["back_off", "retry"])
                overload = chance.choice([""] * 200 + ["timeout", "answer"])
                ends.append((chance.choice([1, 5, 64]), action, overload, latency % 9_000_000))
            arguments = (least, most, *(each for end in ends for each in end))
            found = [int(each) for each in server.run("EVAL", script, 0, *arguments)]
            flow, expected = adaptive.Flow(), []
            for n, (leased, action, overload, took) in enumerate(ends):
                fence = 3 + 4 * n
                here = adaptive.limit_of(flow, least, most)
                adaptive.delivered(flow, leased, here)
                out_of = here if (fence + 1) % 8 == 4 else None
                here = adaptive.part_of(here, min(leased, here), most, out_of)
                expected.append(int(adaptive.bears(flow, fence, least, most)))
                reason = adaptive.reason_of(action, overload or None)  # type: ignore[arg-type]
                if reason is not None:
                    adaptive.overloaded(flow, reason, fence, fence + 40, least, most, fence)
                elif action == "ack":
                    adaptive.succeeded(flow, took, least, most, here, fence)
                expected += [*msgspec.structs.astuple(flow), adaptive.limit_of(flow, least, most)]
            assert found == expected, f"seed {SEED}"


FUNCTIONS = sorted(PARTS.parent.glob("*.lua"))


def code_of(script: str) -> str:
    """A script without comments and strings."""
    return re.sub(r"'(?:\\.|[^'\\\n])*'", "''", re.sub(r"--[^\n]*", "", script))


def defined_by(part: str) -> set[str]:
    """The names of a part that later parts see: its top-level locals."""
    names: set[str] = set()
    for line in code_of(text(part)).splitlines():
        if found := re.match(r"local function (\w+)", line):
            names.add(found[1])
        elif found := re.match(r"local ([\w, ]+?)(?:\s*=|$)", line):
            names |= set(found[1].replace(" ", "").split(","))
    return names


def used_by(part: str, owners: dict[str, str]) -> set[str]:
    """The other parts whose names a part uses, but for shard.lua, which every part uses."""
    names = re.findall(r"(?<![\w.:])([A-Za-z_]\w*)(?!\w)(?!\s*=[^=])", code_of(text(part)))
    return {owners[name] for name in names if name in owners} - {part, "shard"}


def test_parts_use_earlier_ones() -> None:
    """And later ones only where those are declared in front."""
    owners = {name: part for part in scripts.PARTS for name in defined_by(part)}
    owners |= {"ids": "ids", "key_limits": "key_limits", "lanes": "lanes"}
    later_parts = {
        "messages": {"key_limits", "ids"},
        "lanes": {"key_limits"},
        "gates": {"lanes"},
    }
    for part in scripts.PARTS:
        later = used_by(part, owners) - set(scripts.PARTS[: scripts.PARTS.index(part)])
        assert later == later_parts.get(part, set()), f"{part} uses a later part"


def test_names_of_parts_are_unique_and_few() -> None:
    """All parts are one chunk of Lua, which has at most 200 locals."""
    names = [name for part in scripts.PARTS for name in defined_by(part)]
    assert sorted(set(names)) == sorted(names)
    assert len(names) < 175


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda path: path.stem)
def test_functions_list_their_arguments(function: Path) -> None:
    """The head has a line for each argument, in order; only those that are used are listed."""
    script = function.read_text()
    head = re.match(r"(?:--@.*\n\n)?((?:--.*\n)+)", script)
    assert head is not None
    stated = re.findall(r"^-- ARGV\[(\d+)(…?)\]: ", head[1], re.MULTILINE)
    used = set(map(int, re.findall(r"ARGV\[(\d+)\]", code_of(script))))
    numbers = [int(number) for number, _ in stated]
    assert numbers == sorted(numbers)
    assert used <= set(numbers)
    assert {int(number) for number, is_open in stated if not is_open} <= used


def test_every_key_is_in_the_table() -> None:
    """The head of shard.lua has all keys and prefixes that the functions use."""
    head = text("shard").partition("\nlocal ")[0]
    table = set(re.findall(r"[a-z_]+", head))
    for path in [*FUNCTIONS, *PARTS.glob("*.lua")]:
        script = path.read_text()
        keys = re.findall(r"\bkeys\.(\w+)|\bkey\('(\w+)", script)
        missing = {fixed or prefix for fixed, prefix in keys} - table
        assert not missing, path.stem


def test_the_time_of_a_call_without_os() -> None:
    """
    Redis 7.0 has no `os`. The others name nothing of Lua that it lacks. Where the time of day
    stands still during a call, as on this server and on Redis 7.2, calls stay small.
    """
    clock = b"return os.clock"
    code = scripts.SOURCE.decode()
    assert scripts.SOURCE.count(clock) == 1
    lacking = r"(?<![.\w])(os|io|debug|coroutine|load|loadstring|loadfile|require|package)[.(]"
    assert [found[0] for found in re.finditer(lacking, code)] == ["os."]
    with Server() as server:
        server.run("FUNCTION", "LOAD", scripts.SOURCE.replace(clock, b"error('no os')"))
        with closing(open_engine(server.url, Settings(durability="memory"))) as engine:
            engine.put([Draft(f"t{n}", b"x") for n in range(100)])
            leases = engine.lease(100).leases
            ends = [Settlement(lease.handle, lease.fence) for lease in leases]
            assert engine.settle(ends) == ["acked"] * 100
            engine.put([Draft("t", b"x") for _ in range(1_000)])
            assert engine._plain_puts.limit == FIRST_CALL  # type: ignore[attr-defined]
        assert server.run("FUNCTION", "LIST", "WITHCODE")[0][-1].count("no os") == 1
