"""What a message may cost, and how a gate that owes much is opened."""

from __future__ import annotations

import pytest

from laneway.errors import BadMessage
from laneway.headers import COST, MAX_COST
from laneway.message import Draft, Settlement
from laneway.policy import Gate
from laneway.testing.engine_driver import EngineDriver

KINDS = ["topic", "own", "partitions", "gate", "gates", "group"]


def limit(driver: EngineDriver, kind: str, rate: float, burst: int | None = None) -> None:
    """Limit the topic "a.1" by one kind of limit."""
    limits = Gate(rate, burst)
    if kind in ("gate", "gates"):
        driver.engine.gate_set("g", limits, now_us=driver.now)
        driver.engine.gate_set("h", Gate(concurrency=100), now_us=driver.now)
        driver.policy("a.*", gate="g" if kind == "gate" else ["h", "g"])
    elif kind == "group":
        driver.engine.topic_group_set("a", limits, now_us=driver.now)
        driver.policy("a.*", group="{0}")
    elif kind == "partitions":
        driver.policy("a.*", rate=rate, burst=burst, partitions=2)
    else:
        driver.policy("a.1" if kind == "own" else "a.*", rate=rate, burst=burst)


def subscribe(driver: EngineDriver, topic: str, name: str) -> None:
    fields: dict[str, object] = {f"subscription:{name}": {}}
    driver.engine.policy_set("code", topic, fields, now_us=driver.now)


def put(driver: EngineDriver, cost: int, topic: str = "a.1", **options: object) -> None:
    driver.put(topic, str(cost), headers={COST: str(cost)}, key="k", **options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cost_above_what_a_limit_gives_in_a_minute_is_refused(
    driver: EngineDriver, kind: str
) -> None:
    """So nobody waits longer than that for a single message of another."""
    limit(driver, kind, 10, 10)
    for cost in (601, MAX_COST):
        with pytest.raises(BadMessage, match=f"message to a.1: its cost is {cost:,}, .* 600; "):
            put(driver, cost)
    assert driver.waiting("a.1") == 0
    put(driver, 600)
    assert driver.waiting("a.1") == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_burst_allows_its_cost(driver: EngineDriver, kind: str) -> None:
    """Even at a rate that needs hours for it."""
    limit(driver, kind, 1 / 3600, 50)
    put(driver, 50)
    with pytest.raises(BadMessage):
        put(driver, 51)
    assert driver.waiting("a.1") == 1


def test_a_slow_rate_allows_a_cost_of_1(driver: EngineDriver) -> None:
    limit(driver, "gate", 1 / 86_400)
    driver.put("a.1", "1")
    put(driver, 1)
    with pytest.raises(BadMessage, match='gate "g" allows 1;'):
        put(driver, 2)


def test_the_error_names_the_limit_and_the_cure(driver: EngineDriver) -> None:
    """The limit that allows least: the policy, the gate, or the topic group."""
    driver.policy("a.1", rate=10)
    with pytest.raises(BadMessage, match=r"its policy allows 600; .* raise the policy's max_cost"):
        put(driver, 1000)
    driver.engine.gate_set("g", Gate(5), now_us=driver.now)
    driver.policy("a.1", gate="g")
    with pytest.raises(BadMessage, match=r'gate "g" allows 300; .* raise the gate\'s max_cost'):
        put(driver, 1000)
    driver.engine.topic_group_set("a", Gate(1), now_us=driver.now)
    driver.policy("a.1", group="a")
    with pytest.raises(BadMessage, match=r'group "a" allows 60; .* the group\'s rate or burst'):
        put(driver, 1000)


def test_max_cost_of_a_policy(driver: EngineDriver) -> None:
    """It allows more or less than the rate does, even where there is no rate."""
    driver.policy("*", max_cost=5)
    put(driver, 5, "b")
    with pytest.raises(BadMessage, match="allows 5;"):
        put(driver, 6, "b")
    driver.policy("a.*", rate=10, max_cost=1000)
    put(driver, 1000)
    driver.policy("a.1", max_cost=2)
    with pytest.raises(BadMessage, match="allows 2;"):
        put(driver, 3)
    driver.policy("a.1", max_cost=None)
    put(driver, 1000)


def test_max_cost_of_a_gate(driver: EngineDriver) -> None:
    """`gate_list` shows what a gate allows."""
    driver.engine.gate_set("g", Gate(10, max_cost=50), now_us=driver.now)
    driver.engine.gate_set("h", Gate(10), now_us=driver.now)
    driver.engine.gate_set("i", Gate(concurrency=1), now_us=driver.now)
    assert [each["max_cost"] for each in driver.engine.gate_list()] == [50, 600, None]
    driver.policy("a.*", gate=["h", "g"])
    with pytest.raises(BadMessage, match="allows 50;"):
        put(driver, 51)
    driver.engine.gate_set("g", Gate(10, max_cost=10_000), now_us=driver.now)
    with pytest.raises(BadMessage, match='gate "h" allows 600;'):
        put(driver, 601)
    driver.engine.gate_set("h", Gate(10, max_cost=10_000), layer="operator", now_us=driver.now)
    put(driver, 10_000)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lower_limit_charges_less(driver: EngineDriver, kind: str) -> None:
    """A message that was accepted before is charged what the limit allows now."""
    limit(driver, kind, 1000, 10)
    put(driver, 60_000)
    put(driver, 1)
    limit(driver, kind, 1, 10)
    (lease,) = driver.lease()
    driver.settle([lease], "release", begun=False)
    (lease,) = driver.lease()
    assert lease.body == b"60000"
    assert driver.bodies_after(50, 1) == ["1"]


def test_nothing_of_a_call_is_stored(driver: EngineDriver) -> None:
    driver.policy("a.*", rate=1)
    draft = Draft("a.1", b"1", headers={COST: "61"})
    with pytest.raises(BadMessage, match="61"):
        driver.engine.put([Draft("a.1", b"1"), draft, Draft("a.1", b"2")], now_us=driver.now)
    assert driver.waiting("a.1") == 0


def test_a_copy_that_costs_too_much_refuses_its_message(driver: EngineDriver) -> None:
    """The error names the subscription, and nothing is stored, as for a body that is too large."""
    for name in ("audit", "billing"):
        subscribe(driver, "a.1", name)
    driver.policy("a.1#audit", rate=1)
    with pytest.raises(BadMessage, match=r"a\.1#audit"):
        put(driver, 61)
    for topic in ("a.1", "a.1#audit", "a.1#billing"):
        assert driver.waiting(topic) == 0
    put(driver, 60)
    assert driver.waiting("a.1#billing") == 1


@pytest.mark.parametrize("copies", [0, 1, 300])
def test_a_message_published_with_an_ack(driver: EngineDriver, copies: int) -> None:
    """The ack fails with the error, and its message stays leased."""
    driver.policy("a.*", rate=1)
    for n in range(copies):
        subscribe(driver, "b", f"s{n}")
    driver.policy(f"b#s{copies - 1}" if copies else "b", rate=1)
    driver.put("c", "1")
    (lease,) = driver.lease()
    ack = Settlement(lease.handle, lease.fence, "ack")

    def publish(cost: int) -> list[str]:
        draft = Draft("b", b"next", headers={COST: str(cost)})
        return list(driver.engine.settle([ack], publish={0: [draft]}, now_us=driver.now))

    with pytest.raises(BadMessage, match="its cost is 61"):
        publish(61)
    assert driver.waiting("b") == 0
    assert driver.engine.topic_stats("c", now_us=driver.now).leased == 1
    assert publish(60) == ["acked"]


def test_a_spools_batch(driver: EngineDriver) -> None:
    """It fails as a whole, and nothing is remembered of it."""
    driver.policy("a.*", rate=1)

    def forward(cost: int) -> list[str]:
        drafts = [
            Draft("a.1", b"1", id="1", sticky=True),
            Draft("a.1", b"2", id="2", sticky=True, headers={COST: str(cost)}),
        ]
        receipts = driver.engine.forward(drafts, spool="s", batch="1", now_us=driver.now)
        return [receipt.outcome for receipt in receipts]

    with pytest.raises(BadMessage, match="its cost is 61"):
        forward(61)
    assert forward(60) == ["accepted", "accepted"]


def test_gate_reset(driver: EngineDriver) -> None:
    """A gate forgets what it owes and for which cost it is held; its leases stay."""
    driver.engine.gate_set("g", Gate(10, 10, 3, max_cost=MAX_COST), now_us=driver.now)
    driver.policy("a.*", gate="g", lease=10_000)
    put(driver, MAX_COST)
    (first,) = driver.lease()
    driver.put("a.2", "1", "2", "3")
    assert driver.lease(after=3600) == []
    assert driver.engine.gate_reset("g", now_us=driver.now)
    assert driver.bodies() == ["1", "2"]
    driver.settle([first])
    assert driver.bodies() == ["3"]
    assert not driver.engine.gate_reset("unknown", now_us=driver.now)


def test_explain_names_the_reset(driver: EngineDriver) -> None:
    """Of a gate that is shut for long after a high cost."""
    driver.engine.gate_set("g", Gate(10, 10), now_us=driver.now)
    driver.policy("a.*", gate="g")
    put(driver, 600)
    assert driver.bodies() == ["600"]
    driver.put("a.2", "1", id="next")
    (reason,) = driver.engine.explain("next", topic="a.2", now_us=driver.now).reasons
    assert "owes a cost of 600, which `laneway gate reset g` forgets" in reason


def test_gate_reset_ends_a_hold(driver: EngineDriver) -> None:
    """Others do not wait for the permits that a message of a high cost needs."""
    driver.engine.gate_set("g", Gate(1, 10), now_us=driver.now)
    driver.policy("a.*", gate="g")
    driver.put("a.2", "1")
    assert driver.bodies() == ["1"]
    put(driver, 10)
    assert driver.lease() == []
    driver.put("a.3", "cheap")
    assert driver.lease() == []
    driver.engine.gate_reset("g", now_us=driver.now)
    assert driver.bodies() == ["10"]


@pytest.mark.parametrize("between", [False, True])
def test_a_rate_that_is_removed_and_set_again(driver: EngineDriver, between: bool) -> None:
    """The gate owes what it owed, at most what the last cost takes at the new rate."""
    driver.engine.gate_set("g", Gate(10, 10, max_cost=10_000), now_us=driver.now)
    driver.policy("a.*", gate="g", lease=10_000)
    put(driver, 10_000)
    assert driver.bodies() == ["10000"]
    driver.engine.gate_set("g", Gate(concurrency=100), now_us=driver.now)
    if between:
        driver.put("a.2", "1")
        assert driver.bodies() == ["1"]
    driver.later(10)
    driver.engine.gate_set("g", Gate(100, 10), now_us=driver.now)
    driver.put("a.2", "2")
    assert driver.bodies_after(99, 1) == ["2"]
