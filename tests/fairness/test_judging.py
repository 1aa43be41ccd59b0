"""The judge finds what it looks for: too little, a long pause, a limit that is exceeded."""

from __future__ import annotations

from typing import Any

from laneway.policy import Gate as Limits, Layer
from laneway.testing.simulation.checks import Bucket
from laneway.units import SECOND
from tests.fairness.cases import Case
from tests.fairness.judging import judge
from tests.fairness.simulation import Delivery, Simulation
from tests.model import Model
from tests.model.fair_rates import Gate, System, Tier, Topic


def a_case() -> Case:
    """Two topics at a gate that handles 10 messages a second."""
    topics = [Topic(name, 0.1, gates=("g",)) for name in "ab"]
    system = System(topics, 4, {"g": Gate(concurrency=1)})
    return Case(1, system, {"a": [(0.0, 100.0)], "b": [(0.0, 100.0)]}, [2, 2])


def judged(times: dict[str, list[float]]) -> dict[str, Any]:
    """The verdicts about these deliveries."""
    simulation = Simulation(a_case(), None)
    simulation.deliveries = sorted(
        (Delivery(at, topic) for topic, found in times.items() for at in found),
        key=lambda delivery: delivery.at,
    )
    return {verdict.topic.name: verdict for verdict in judge(simulation).verdicts}


def test_too_little() -> None:
    """Due are 5/s: 4.1/s passes, 3.8/s does not."""
    times = {"a": [n / 4.1 for n in range(410)], "b": [n / 3.8 for n in range(380)]}
    verdicts = judged(times)
    assert [verdicts[name].is_failed for name in "ab"] == [False, True]
    assert (round(verdicts["b"].due), verdicts["b"].got) == (300, 228)


def test_a_long_pause() -> None:
    """At 5/s a pause is at most 3 s."""
    steady = [n / 5 for n in range(500)]
    verdicts = judged({"a": steady, "b": [at for at in steady if not 40 < at < 44]})
    assert [verdicts[name].is_failed for name in "ab"] == [False, True]
    assert verdicts["b"].ratio > 0.8


def test_topics_that_leave() -> None:
    """What is due grows while the other topic is away."""
    simulation = Simulation(a_case(), None)
    active = {"a": [(0.0, 100.0)], "b": [(0.0, 30.0)]}
    simulation.case = Case(1, simulation.case.system, active, [2, 2])
    simulation.deliveries = [Delivery(n / 5, "a") for n in range(500)]
    (verdict, _) = judge(simulation).verdicts
    assert (verdict.is_failed, round(verdict.due)) == (True, 600)


def test_a_topic_that_adapts() -> None:
    """It may use all that a strict tier gets, so nothing is due to a topic of another tier."""
    tiers = {"vip": Tier("strict"), "mid": Tier(1)}
    topics = [
        Topic("a", 0.1, tier="vip", concurrency=4, gates=("g",)),
        Topic("b", 0.1, gates=("g",)),
    ]
    system = System(topics, 4, {"g": Gate(rate=10)}, tiers=tiers)
    simulation = Simulation(a_case(), None)
    active = {"a": [(0.0, 100.0)], "b": [(0.0, 100.0)]}
    simulation.case = Case(1, system, active, [4], adaptive={"a": 4})
    simulation.deliveries = [Delivery(n / 9, "a") for n in range(900)]
    (_, verdict) = judge(simulation).verdicts
    assert (verdict.is_failed, verdict.due) == (False, 0)


def test_a_bucket() -> None:
    """Two permits at once, then one each half second; a high cost needs a whole burst."""
    bucket = Bucket(2.0, 2, 1.0)
    assert [bucket.take(0, 1) > 0 for _ in range(3)] == [False, False, True]
    bucket = Bucket(2.0, 2, 1.0)
    assert bucket.take(0, 5) <= 0
    assert bucket.take(2 * SECOND, 1) <= 0
    assert bucket.take(2 * SECOND, 1) > 0


def test_a_bucket_on_several_shards() -> None:
    """Each place of a burst delivers a message that costs more than its 1.5 permits."""
    for places, most in ((1, 5), (2, 10)):
        bucket = Bucket(1.0, 3, 1.0, places, 5)
        assert [bucket.take(0, 5) <= 0 for _ in range(3)] == [
            5 * number <= most for number in (1, 2, 3)
        ]


class Lax(Model):
    """Allows two handlers at each gate."""

    def gate_set(
        self, name: str, gate: Limits, *, layer: Layer = "code", now_us: int | None = None
    ) -> None:
        super().gate_set(name, Limits(concurrency=2), layer=layer, now_us=now_us)


def test_a_concurrency_that_is_exceeded() -> None:
    case = a_case()
    simulation = Simulation(Case(1, case.system, case.active, [2, 2], length=5.0), Lax())
    simulation.run()
    assert simulation.exceeded == {"concurrency of gate g": 1}
