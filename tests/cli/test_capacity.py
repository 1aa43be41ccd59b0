"""`laneway bench --costs` measures, and `laneway capacity` computes from it."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING

import msgspec
import pytest

from laneway.cli.fleet import costs, measuring, model
from laneway.cli.fleet.costs import Rule, Step, Work
from laneway.cli.fleet.measuring import Measurement, Run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Command

LOAD = ("--topics", "1e9", "--rate", "1e7", "--workers", "1e4")


def test_costs_of_this_machine(laneway: Command, tmp_path: Path) -> None:
    """The file that `bench` writes is what `capacity` reads; engines that it lacks are named."""
    path = tmp_path / "costs.json"
    measured = laneway.json("bench", "--costs", str(path), "--size", "smoke")
    assert set(measured["steps"]["client"]) == {"put", "lease", "settle", "forget"}
    (plan,) = laneway.json("capacity", *LOAD, "--costs", str(path))["plans"]
    assert plan["engine"] == "sqlite"
    assert plan["store_cores"] > 0
    lacking = laneway("capacity", *LOAD, "--costs", str(path), "--engine", "valkey", code=2)
    assert "the costs have no engine valkey, only sqlite" in lacking.stderr


def test_our_costs(laneway: Command) -> None:
    """The table has each engine; a rule that holds for more messages costs more."""
    shown = laneway("capacity", *LOAD).stdout
    assert "first bottleneck" in shown
    assert "dollars for 10^9 messages" in shown
    assert "valkey, ten times the load: " in shown
    plain, limited = (
        laneway.json("capacity", *LOAD, "--engine", "valkey", *more)["plans"][0]["store_cores"]
        for more in ((), ("--rule", "serial=0.5"))
    )
    assert limited > plain


def test_prices_and_nodes(laneway: Command) -> None:
    """Stated prices and sizes of nodes replace the usual ones."""
    free = [f"--price={name}=0" for name in model.PRICES]
    (plan,) = laneway.json("capacity", *LOAD, "--engine", "postgres", *free)["plans"]
    assert plan["dollars"] == 0
    (small,) = laneway.json("capacity", *LOAD, "--engine", "postgres", "--node", "cores=1")["plans"]
    assert small["nodes"] > plan["nodes"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rate", "-1"), "-1.0 is not in the range 0.001<=x<=1000000000000.0"),
        (("--topics", "1e99"), "1e+99 is not in the range"),
        (("--workers", "nan"), "nan is not a number"),
        (("--engine", "kafka"), "'kafka' is not one of"),
        (("--rule", "magic=0.5"), 'the costs have no rule "magic", only limits'),
        (("--rule", "limits"), "--rule: expected NAME=NUMBER, got 'limits'"),
        (("--rule", "limits=7"), "--rule limits: expected a number from 0 to 1, got '7'"),
        (("--price", "gold=3"), "--price: expected core, memory, disk, network, got gold"),
        (("--shards", "3"), "--shards: expected a power of two, got 3"),
        (("--costs", "absent.json"), "costs absent.json: No such file or directory"),
        (("--costs", __file__), "write the file with `laneway bench --costs"),
        (("--rule", "limits=0.5", "--limited", "0.2"), "--limited and --rule limits are the same"),
        (("--rule", "ttl=0.5", "--rule", "ttl=1"), "--rule ttl: given twice"),
        (("--node", "cores=1", "--node", "cores=2"), "--node cores: given twice"),
        (("--rule", "serial=0.6", "--rule", "key_rate=0.5"), "no policy has both"),
    ],
)
def test_wrong_input_is_one_line(laneway: Command, arguments: tuple[str, ...], words: str) -> None:
    """What cannot be meant is refused in one line that names what can."""
    error = laneway("capacity", *LOAD, *arguments, code=2).stderr
    assert words in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "the costs have no engine sqlite, only an empty list"),
        ({"mysql": {}}, "the costs have no engine sqlite, only mysql"),
        ({"valkey": {"steps": {"client": {}}}}, "valkey.steps.client.put is missing"),
        ({"valkey": {"rules": {"ttl": {}}}}, "valkey.rules.ttl.steps.client.put is missing"),
        ({"valkey": {"beat": {"client": 1.0}}}, "valkey.beat.server is missing"),
        ({"valkey": {"trips": {}}}, "valkey.trips.put is missing"),
        ({"valkey": {"message_bytes": 1e308}}, "Expected `float` <= 1000000000000.0"),
    ],
)
def test_costs_of_another_version(
    laneway: Command, tmp_path: Path, change: dict[str, dict[str, object]], words: str
) -> None:
    """A file that lacks what a prediction needs is refused in one line that names the lack."""
    path = tmp_path / "costs.json"
    ours = msgspec.to_builtins(costs.load()["valkey"])
    path.write_bytes(msgspec.json.encode({name: ours | each for name, each in change.items()}))
    error = laneway("capacity", *LOAD, "--costs", str(path), code=2).stderr
    assert words in error
    assert error.count("\n") == 1


def test_files_of_a_sqlite_host(laneway: Command) -> None:
    """A file has one writer, so a host's cores need several; without them its lock is too busy."""
    fast = ("--topics", "1e4", "--rate", "1e5", "--workers", "10", "--engine", "sqlite")
    (slow,) = laneway.json("capacity", *fast, "--rate", "5e3")["plans"]
    (several,) = laneway.json("capacity", *fast)["plans"]
    assert slow["shards"] == 1
    assert several["shards"] > several["store_cores"] > 1
    shown = laneway("capacity", *fast, "--shards", "1").stdout
    assert "sqlite: file locks: " in shown


def test_a_fit_finds_the_cost() -> None:
    """Costs that are linear are found again, whatever the runs were."""
    truth = Step(call=100, message=5, lane=8, new=3, growth=2, creating=200)
    runs = [
        Work(100, 10_000, 1_000, 10),
        Work(250, 2_500, 2_500, 10),
        Work(250, 2_500, 2_500, 2_500, 2_500, 250),
        Work(100, 10_000, 10_000, 1_000, 1_000, 10),
        Work(100, 10_000, 10_000, 10_000, 10_000, 100),
        Work(1_000, 100_000, 100_000, 100_000, 100_000, 1_000),
    ]
    found = costs.fitted(runs, [truth.cost(work) for work in runs])
    for work in (*runs, Work(800, 10_000, 10_000, 10_000, 1_000_000, 400)):
        assert found.cost(work) == pytest.approx(truth.cost(work), rel=0.02)


def test_a_lane_costs_more_among_more_topics() -> None:
    """Few topics are in the caches; from then on each ten times as many cost as much more."""
    step = Step(lane=1, growth=1)
    few, many, more = (
        step.cost(Work(calls=0, messages=0, lanes=1, topics=topics)) for topics in (1e3, 1e7, 1e8)
    )
    assert few == pytest.approx(1, rel=0.02)
    assert more - many == pytest.approx(1, rel=0.01)


def test_of_rules_of_a_group_the_dearest_counts() -> None:
    """On Valkey several rules keep a message in a record of its own, which is written once."""

    def rule(put: float, size: float, group: str = "") -> Rule:
        return Rule({"server": {"put": Step(message=put)}}, message_bytes=size, group=group)

    rules = {"a": rule(10, 50, "records"), "b": rule(4, 80, "records"), "c": rule(3, 7)}
    known = msgspec.structs.replace(costs.load()["valkey"], rules=rules)

    def more(**shares: float) -> tuple[float, float]:
        work = Work(calls=1, messages=1, lanes=1)
        times = [known.microseconds("server", "put", work, each) for each in ({}, shares)]
        sizes = [known.stored_bytes(1, 0, 100, each) for each in ({}, shares)]
        return times[1] - times[0], sizes[1] - sizes[0]

    assert more(a=1, c=1) == pytest.approx((13, 57))
    assert more(a=1, b=1) == pytest.approx((10, 80))
    # Half of the messages with b have a as well.
    assert more(a=0.5, b=1, c=1) == pytest.approx((5 + 2 + 3, 80 + 7))


def test_more_nodes_have_fewer_topics_each() -> None:
    """The topics of a fleet are divided over its machines."""
    one, eight = (
        costs.works(batch=100, shards=8, topics=80_000, depth=1, machines=machines)
        for machines in (1, 8)
    )
    assert one["put"].topics == 80_000
    assert eight["put"].topics == 10_000
    assert one["put"].calls == eight["put"].calls


def test_a_batch_is_one_call_for_each_shard() -> None:
    """
    The calls of a measurement are those that the model computes. Sockets of the process that are
    connected elsewhere are not counted.
    """
    one, other = socket.socketpair()
    with one, other, measuring.place_of("valkey") as place:
        for shards in (1, 8):
            run = Run("plain", topics=100, messages=400, shards=shards)
            measurement = Measurement(place, run, f"of{shards}")
            measurement.work()
            measurement.engine.close()
            expected = costs.works(batch=run.batch, shards=shards, topics=100, depth=4)
            calls = measurement.best["put"].work.calls
            assert calls == pytest.approx(expected["put"].calls * run.messages, rel=0.01)
            assert measurement.best["lease"].work.messages == run.messages


@pytest.mark.parametrize("rule", ["plain", "group"])
@pytest.mark.parametrize(
    ("topics", "depth", "batch"), [(100, 10, 100), (125, 10, 100), (500, 12, 400), (125, 1, 100)]
)
def test_a_lease_visits_as_many_lanes_as_computed(
    rule: str, topics: int, depth: int, batch: int
) -> None:
    """Among more than 100 lanes a visit takes more; without a group a lease knows fewer lanes."""
    with measuring.place_of("sqlite") as place:
        measurement = Measurement(place, Run(rule, topics, topics * depth, batch), "lanes")
        measurement.work()
        measurement.engine.close()
    rules = {} if rule == "plain" else {rule: 1.0}
    works = costs.works(batch=batch, shards=1, topics=topics, depth=depth)
    for name in ("lease", "settle"):
        work, expected = measurement.best[name].work, works[name].under(rules)
        assert work.lanes / work.messages == pytest.approx(expected.lanes, rel=0.03)


def test_round_trips_of_several_schemas() -> None:
    """
    One schema's costs tell how often a client of four waits: a put that creates topics waits once
    more, and so does one that looks for earlier ids.
    """
    scale = 0.05
    with ExitStack() as stack:
        survey = measuring.survey_of("postgres", scale, stack, ["dedupe"])
        place = survey["plain"][0].place
        runs = [Run(rule, 400, 400, shards=4) for rule in ("plain", "dedupe")]
        checks = [Measurement(place, run, run.rule) for run in runs]
        for check in checks:
            stack.callback(check.engine.close)
        measuring.measure_once([*chain(*survey.values()), *checks])
        known = measuring.costs_of(survey, "test", scale)
    works = costs.works(batch=100, shards=4, topics=400, depth=1)
    for check, trips in zip(checks, (3, 4), strict=True):
        shares = {} if check.run.rule == "plain" else {check.run.rule: 1.0}
        measured = check.best["put"].trips
        assert measured == pytest.approx(trips * 4 * 4, rel=0.1)
        assert known.round_trips("put", works["put"], shares) * 400 == pytest.approx(
            measured, rel=0.1
        )


@pytest.mark.parametrize(("batch", "creating"), [(1, 0.1), (100, 1.0)])
def test_most_calls_create_topics_if_some_messages_do(batch: int, creating: float) -> None:
    """In a fleet new topics come among others: 100 messages of one call have some nearly always."""
    known = costs.load()["postgres"]
    load = model.Load(topics=1e3, rate=1e4, workers=10, batch=batch)
    plan = model.plan("postgres", known, load, shards=1)
    calls = sum(step.call for step in known.trips.values()) / batch
    assert plan.round_trips == pytest.approx(
        calls + creating * known.trips["put"].creating / batch, rel=0.03
    )


def test_the_bottleneck_and_what_breaks() -> None:
    """Many workers use up the connections of a server, which more servers do not give it."""
    known = costs.load()
    load = model.Load(topics=1e6, rate=1e4, workers=1e4)
    few = model.plan("valkey", known["valkey"], model.Load(topics=1e6, rate=1e4, workers=100))
    many = model.plan("valkey", known["valkey"], load)
    assert few.bottleneck.name != "connections"
    assert many.bottleneck.name == "connections"
    assert any(each.startswith("connections: ") for each in many.breaks)
