"""Subscriptions: each reader of a topic has a copy of its messages."""

from __future__ import annotations

import pytest

from laneway.errors import BadMessage, BadPolicy
from laneway.message import Draft, Settlement
from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND

AUDIT, BILLING = "orders#audit", "orders#billing"


def subscribe(driver: EngineDriver, pattern: str, *names: str, **settings: object) -> None:
    fields = {f"subscription:{name}": dict(settings) for name in names}
    driver.engine.policy_set("code", pattern, fields, now_us=driver.now)


def bodies_of(driver: EngineDriver, topic: str) -> list[str]:
    """Lease and ack what a topic can deliver."""
    return driver.run(topics=[topic])


def test_subscription_each_subscription_has_a_copy(driver: EngineDriver) -> None:
    """The topic's own workers get the message, too; all copies have its contents."""
    subscribe(driver, "orders", "audit", "billing")
    driver.put("orders", "1", key="k", priority=7, headers={"type": "new"})
    leases = driver.lease()
    assert sorted(lease.topic for lease in leases) == ["orders", AUDIT, BILLING]
    assert {(lease.body, lease.key, lease.priority) for lease in leases} == {(b"1", "k", 7)}
    assert {lease.headers["type"] for lease in leases if lease.headers} == {"new"}
    assert len({lease.id for lease in leases}) == 3


def test_subscription_copies_are_finished_apart(driver: EngineDriver) -> None:
    subscribe(driver, "orders", "audit")
    driver.put("orders", "1", "2")
    assert bodies_of(driver, AUDIT) == ["1", "2"]
    assert (driver.waiting("orders"), driver.waiting(AUDIT)) == (2, 0)
    assert bodies_of(driver, "orders") == ["1", "2"]


def test_subscription_order_of_copies(driver: EngineDriver) -> None:
    """Copies keep their priority and the order of their messages."""
    subscribe(driver, "orders", "audit")
    for body, priority in (("1", 0), ("2", 0), ("3", 5), ("4", 0)):
        driver.put("orders", body, priority=priority)
    driver.put("orders", "5", at_front=True)
    assert bodies_of(driver, AUDIT) == ["3", "5", "1", "2", "4"]


def test_subscription_pattern_subscription(driver: EngineDriver) -> None:
    """It holds for each topic of the pattern, and not for copies or topics outside."""
    subscribe(driver, "orders.*", "audit")
    subscribe(driver, "orders.eu", "billing")
    driver.put("orders.eu", "1")
    driver.put("orders.us", "2")
    driver.put("orders", "3")
    assert sorted((lease.topic, lease.body) for lease in driver.lease()) == [
        ("orders", b"3"),
        ("orders.eu", b"1"),
        ("orders.eu#audit", b"1"),
        ("orders.eu#billing", b"1"),
        ("orders.us", b"2"),
        ("orders.us#audit", b"2"),
    ]


def test_subscription_most_specific_settings_of_a_name(driver: EngineDriver) -> None:
    """Of several settings of one name the most specific ones count: one copy at most."""
    subscribe(driver, "orders.*", "audit", where={"type": "a"})
    subscribe(driver, "orders.eu", "audit", where={"type": "b"})
    driver.put("orders.eu", "1", headers={"type": "a"})
    driver.put("orders.eu", "2", headers={"type": "b"})
    driver.put("orders.us", "3", headers={"type": "a"})
    assert bodies_of(driver, "orders.eu#audit") == ["2"]
    assert bodies_of(driver, "orders.us#audit") == ["3"]


@pytest.mark.parametrize(
    ("where", "taken"),
    [
        ({"type": "order.*"}, ["paid", "sent"]),
        ({"type": "order.paid"}, ["paid"]),
        ({"type": ["order.paid", "cart.*"]}, ["paid", "cart"]),
        ({"type": "order.*", "region": "eu"}, ["sent"]),
        ({"region": "*"}, ["sent"]),
        ({"type": "order.*", "none": "*"}, []),
    ],
)
def test_subscription_where(
    driver: EngineDriver, where: dict[str, object], taken: list[str]
) -> None:
    """Every header has to match one of its values; a star at the end stands for any rest."""
    subscribe(driver, "orders", "audit", where=where)
    driver.put("orders", "paid", headers={"type": "order.paid"})
    driver.put("orders", "sent", headers={"type": "order.sent", "region": "eu"})
    driver.put("orders", "cart", headers={"type": "cart.new"})
    driver.put("orders", "none")
    assert bodies_of(driver, AUDIT) == taken


def test_subscription_end_of_a_subscription(driver: EngineDriver) -> None:
    """New messages have no copies; what waits stays."""
    subscribe(driver, "orders", "audit")
    driver.put("orders", "1")
    driver.engine.policy_set("code", "orders", {"subscription:audit": None}, now_us=driver.now)
    driver.put("orders", "2")
    assert bodies_of(driver, AUDIT) == ["1"]


def test_subscription_no_subscriptions_of_subscriptions(driver: EngineDriver) -> None:
    with pytest.raises(BadPolicy, match="subscribe to orders"):
        subscribe(driver, AUDIT, "again")


@pytest.mark.parametrize(
    "settings",
    [
        {"kind": "some"},
        {"expires": 1},
        {"expires": "soon"},
        {"where": {}},
        {"where": {"a": "x*y"}},
        {"where": {"a": []}},
        {"wher": {}},
    ],
)
def test_subscription_bad_settings(driver: EngineDriver, settings: dict[str, object]) -> None:
    with pytest.raises(BadPolicy, match=r"subscription audit of orders: .*(expected|unknown)"):
        subscribe(driver, "orders", "audit", **settings)


@pytest.mark.parametrize("name", ["", "a.b", "a#b", "a b", "*", "ä", "x" * 65])
def test_subscription_bad_name(driver: EngineDriver, name: str) -> None:
    with pytest.raises(BadPolicy, match="expected a name of 1 to 64 letters"):
        subscribe(driver, "orders", name)


# What the policies of the topic and of the subscription decide


def test_subscription_own_policies(driver: EngineDriver) -> None:
    """Patterns hold for a subscription, too; the exact policy of its topic does not."""
    subscribe(driver, "orders.eu", "audit", "billing")
    driver.policy("orders.*", retries=3)
    driver.policy("orders.eu", weight=2, paused=True)
    driver.policy("orders.eu#audit", rate=5)
    audit = driver.engine.policy_of("orders.eu#audit")
    billing = driver.engine.policy_of("orders.eu#billing")
    assert (audit.rate, audit.retries, audit.weight, audit.paused) == (5, 3, 1, False)
    assert (billing.rate, billing.retries) == (None, 3)
    driver.put("orders.eu", "1")
    assert sorted(lease.topic for lease in driver.lease()) == [
        "orders.eu#audit",
        "orders.eu#billing",
    ]


def test_subscription_retries_and_dead_letters(driver: EngineDriver) -> None:
    """Retries are counted apart, dead letters are redriven by the subscription's name."""
    subscribe(driver, "orders", "audit")
    driver.policy(AUDIT, retries=0)
    driver.put("orders", "1")
    driver.settle(driver.lease(topics=[AUDIT]), "retry")
    assert driver.engine.topic_stats(AUDIT).dead == 1
    assert driver.engine.topic_stats("orders").dead == 0
    assert [view.topic for _, view in driver.engine.dead_list(AUDIT)] == [AUDIT]
    assert driver.engine.dead_redrive(AUDIT, now_us=driver.now) == 1
    assert bodies_of(driver, AUDIT) == ["1"]
    assert bodies_of(driver, "orders") == ["1"]


def test_subscription_views(driver: EngineDriver) -> None:
    """Peek, explain, lookup, list and purge take the subscription's name."""
    subscribe(driver, "orders", "audit")
    driver.put("orders", "1", id="x")
    engine = driver.engine
    assert [view.topic for view in engine.topic_peek(AUDIT)] == [AUDIT]
    assert engine.explain("x", AUDIT, now_us=driver.now).topic == AUDIT
    assert engine.lookup(AUDIT, ["x"]) == {"x": "waiting"}
    assert [stats.topic for stats in engine.topic_list(now_us=driver.now)] == ["orders", AUDIT]
    assert engine.topic_purge("orders", now_us=driver.now) == 1
    assert driver.waiting(AUDIT) == 1
    assert engine.topic_purge(AUDIT, now_us=driver.now) == 1
    assert bodies_of(driver, AUDIT) == []


def test_subscription_deleting_the_topic_leaves_copies(driver: EngineDriver) -> None:
    subscribe(driver, "orders", "audit")
    driver.put("orders", "1")
    driver.engine.topic_delete("orders", now_us=driver.now)
    assert bodies_of(driver, AUDIT) == ["1"]


def test_subscription_a_duplicate_has_no_copies(driver: EngineDriver) -> None:
    """A known id of the topic makes no copies, whether the copy was finished or not."""
    subscribe(driver, "orders", "audit")
    driver.put("orders", "1", id="x")
    bodies_of(driver, AUDIT)
    assert driver.put("orders", "1", id="x")[0].outcome == "duplicate"
    assert bodies_of(driver, AUDIT) == []


def test_subscription_a_known_copy_is_not_stored_again(driver: EngineDriver) -> None:
    """A copy has its message's own id: while it waits, a second message of the id adds none."""
    subscribe(driver, "orders", "audit")
    driver.put("orders", "1", id="x")
    assert bodies_of(driver, "orders") == ["1"]
    assert driver.put("orders", "2", id="x")[0].outcome == "accepted"
    assert bodies_of(driver, "orders") == ["2"]
    assert bodies_of(driver, AUDIT) == ["1"]


def test_subscription_dedupe(driver: EngineDriver) -> None:
    """The topic's window decides about its messages; a subscription may have its own."""
    subscribe(driver, "orders", "audit", "billing")
    driver.policy(AUDIT, dedupe="1h")
    driver.put("orders", "1", id="x")
    driver.run()
    driver.put("orders", "2", id="x")
    assert bodies_of(driver, "orders") == ["2"]
    assert bodies_of(driver, AUDIT) == []
    assert bodies_of(driver, BILLING) == ["2"]


def test_subscription_merge(driver: EngineDriver) -> None:
    """A message that joins another one in its topic has copies; they merge by their own policy."""
    subscribe(driver, "orders", "audit", "billing")
    driver.policy("orders", merge="last")
    driver.policy(BILLING, merge="first")
    assert driver.put("orders", "1", key="k")[0].outcome == "accepted"
    assert driver.put("orders", "2", key="k")[0].outcome == "merged"
    assert bodies_of(driver, "orders") == ["2"]
    assert bodies_of(driver, AUDIT) == ["1", "2"]
    assert bodies_of(driver, BILLING) == ["1"]


def test_subscription_delay_and_ttl(driver: EngineDriver) -> None:
    """The publisher's delay and ttl hold for copies; the policies' ttl are apart."""
    subscribe(driver, "orders", "audit")
    driver.policy("orders", ttl=5, on_expiry="drop")
    driver.put("orders", "late", delay_us=2_000_000)
    driver.put("orders", "brief", ttl_us=1_000_000)
    driver.put("orders", "usual")
    assert driver.engine.topic_stats(AUDIT, now_us=driver.now).delayed == 1
    driver.tick_after(10)
    assert driver.waiting("orders") == 0
    assert bodies_of(driver, AUDIT) == ["usual", "late"]


def test_subscription_serial_keys(driver: EngineDriver) -> None:
    """Keys are serial in each subscription by itself."""
    subscribe(driver, "orders", "audit")
    driver.policy(AUDIT, serial=True)
    driver.put("orders", "1", "2", key="k")
    assert driver.bodies(topics=[AUDIT]) == ["1"]
    assert driver.bodies(topics=["orders"]) == ["1", "2"]


def test_subscription_refused_by_a_body_limit(driver: EngineDriver) -> None:
    """A message that a subscription could not hold is an error, and nothing is stored."""
    subscribe(driver, "orders", "audit")
    driver.policy(AUDIT, max_body=3)
    with pytest.raises(BadMessage, match="orders#audit"):
        driver.put("orders", "four")
    assert driver.waiting("orders") == 0


# Backlogs


def test_subscription_full_subscription_refuses_the_publish(driver: EngineDriver) -> None:
    subscribe(driver, "orders", "audit", "billing")
    driver.policy(AUDIT, max_backlog=1)
    first, second = driver.put("orders", "1", "2")
    assert (first.outcome, second.outcome, second.topic) == ("accepted", "refused", AUDIT)
    assert second.reason is not None
    assert second.reason.startswith("topic orders#audit: 1 message waits")
    assert driver.waiting("orders") == driver.waiting(BILLING) == 1
    bodies_of(driver, AUDIT)
    assert driver.put("orders", "3")[0].outcome == "accepted"


def test_subscription_full_topic_refuses_copies(driver: EngineDriver) -> None:
    subscribe(driver, "orders", "audit")
    driver.policy("orders", max_backlog=1)
    assert [receipt.outcome for receipt in driver.put("orders", "1", "2")] == [
        "accepted",
        "refused",
    ]
    assert driver.waiting(AUDIT) == 1


def test_subscription_full_subscription_drops_its_oldest(driver: EngineDriver) -> None:
    subscribe(driver, "orders", "audit", "billing")
    driver.policy(AUDIT, max_backlog=2, on_full="drop_oldest")
    driver.put("orders", "1", "2", "3")
    assert bodies_of(driver, AUDIT) == ["2", "3"]
    assert bodies_of(driver, BILLING) == ["1", "2", "3"]
    assert driver.engine.topic_stats(AUDIT).dead == 1


def test_subscription_nothing_is_dropped_for_a_refused_message(driver: EngineDriver) -> None:
    subscribe(driver, "orders", "audit", "billing")
    driver.policy(AUDIT, max_backlog=1, on_full="drop_oldest")
    driver.policy(BILLING, max_backlog=1)
    driver.put("orders", "1", "2")
    assert bodies_of(driver, AUDIT) == bodies_of(driver, BILLING) == ["1"]


def test_subscription_copy_that_merges_is_not_refused(driver: EngineDriver) -> None:
    subscribe(driver, "orders", "audit")
    driver.policy(AUDIT, max_backlog=1, merge="last")
    driver.put("orders", "1", "2", key="k")
    assert driver.put("orders", "3", key="other")[0].outcome == "refused"
    assert bodies_of(driver, AUDIT) == ["2"]
    assert bodies_of(driver, "orders") == ["1", "2"]


# Without a backlog of the topic's own


def test_subscription_only_subscriptions_get_messages(driver: EngineDriver) -> None:
    subscribe(driver, "orders", "audit", where={"type": "a"})
    subscribe(driver, "orders", "billing", where={"type": "*"})
    driver.policy("orders", own_backlog=False)
    receipts = [
        driver.put("orders", "1", headers={"type": "a"})[0],
        driver.put("orders", "2", headers={"type": "b"})[0],
        driver.put("orders", "3")[0],
    ]
    assert [receipt.outcome for receipt in receipts] == ["accepted", "accepted", "unrouted"]
    assert driver.waiting("orders") == 0
    assert bodies_of(driver, AUDIT) == ["1"]
    billing = driver.lease(topics=[BILLING])
    assert [lease.body for lease in billing] == [b"1", b"2"]
    assert billing[1].id == receipts[1].id


def test_subscription_unrouted_messages_are_counted(driver: EngineDriver) -> None:
    driver.policy("orders", own_backlog=False)
    assert driver.put("orders", "1")[0].outcome == "unrouted"
    overview = driver.engine.overview(now_us=driver.now)
    assert (overview.published, overview.removed, overview.waiting) == (1, 1, 0)
    (tally,) = driver.engine.tallies().tallies
    assert (tally.published, tally.waiting) == (1, 0)


def test_subscription_duplicates_without_a_backlog(driver: EngineDriver) -> None:
    """Known ids are those of the subscriptions; a message is a duplicate where all of them are."""
    subscribe(driver, "orders", "audit", "billing")
    driver.policy("orders", own_backlog=False)
    driver.policy("*", dedupe="1h")
    assert driver.put("orders", "1", id="x")[0].outcome == "accepted"
    bodies_of(driver, AUDIT)
    assert driver.put("orders", "2", id="x")[0].outcome == "duplicate"
    assert (driver.waiting(AUDIT), driver.waiting(BILLING)) == (0, 1)


def test_subscription_full_subscription_without_a_backlog(driver: EngineDriver) -> None:
    subscribe(driver, "orders", "audit", "billing")
    driver.policy("orders", own_backlog=False)
    driver.policy(AUDIT, max_backlog=1)
    assert [receipt.outcome for receipt in driver.put("orders", "1", "2")] == [
        "accepted",
        "refused",
    ]
    assert driver.waiting(BILLING) == 1


def test_subscription_unused(driver: EngineDriver) -> None:
    """
    One from which nothing was delivered while messages waited gets no more copies, until somebody
    takes one of those.
    """
    subscribe(driver, "orders", "audit", expires="10m")
    subscribe(driver, "orders", "billing")
    driver.put("orders", "1", "2")
    driver.later(590)
    driver.put("orders", "3")
    driver.later(15)
    driver.put("orders", "4", "5")
    assert driver.waiting("orders") == driver.waiting(BILLING) == 5
    leases = driver.lease(1, topics=[AUDIT])
    driver.put("orders", "6")
    driver.settle(leases)
    driver.later(300)
    driver.put("orders", "7")
    assert bodies_of(driver, AUDIT) == ["2", "3", "6", "7"]
    driver.later(10_000)
    driver.put("orders", "8")
    assert bodies_of(driver, AUDIT) == ["8"]


def test_subscription_that_has_nothing_to_deliver_is_used(driver: EngineDriver) -> None:
    """Messages that wait for their time make it no unused one."""
    subscribe(driver, "orders", "audit", expires="10m")
    driver.put("orders", "1", delay_us=3_600 * SECOND)
    driver.later(700)
    driver.put("orders", "2", delay_us=3_600 * SECOND)
    assert [lease.topic for lease in driver.lease(10, topics=["orders"], after=2_901)] == ["orders"]
    driver.put("orders", "3", "4")  # "1" is due, and has not waited for long
    assert bodies_of(driver, AUDIT) == ["1", "3", "4"]


def test_subscription_that_backs_off_is_used(driver: EngineDriver) -> None:
    subscribe(driver, "orders", "audit", expires=60)
    driver.put("orders", "1")
    driver.settle(driver.lease(1, topics=[AUDIT]), "back_off", delay_us=290 * SECOND)
    driver.later(200)
    driver.put("orders", "2", "3")
    assert driver.waiting(AUDIT) == 3
    driver.lease(topics=["nothing"], after=200)
    driver.put("orders", "4")
    assert driver.waiting(AUDIT) == 3


def test_subscription_after_a_long_silence_is_used(driver: EngineDriver) -> None:
    """Nobody leased for long, but nothing waited either."""
    subscribe(driver, "orders", "audit", expires=60)
    driver.put("orders", "1")
    assert bodies_of(driver, AUDIT) == ["1"]
    driver.later(10_000)
    driver.put("orders", "2")
    driver.put("orders", "3", "4")
    assert bodies_of(driver, AUDIT) == ["2", "3", "4"]


def test_subscription_unused_by_priorities(driver: EngineDriver) -> None:
    """The oldest message decides, whatever is before it."""
    subscribe(driver, "orders", "audit", expires=60)
    driver.put("orders", "1", priority=-7)
    driver.later(50)
    driver.put("orders", "2", at_front=True)
    driver.put("orders", "3", priority=9)
    driver.put("orders", "4")
    driver.later(20)
    driver.put("orders", "5")
    assert bodies_of(driver, AUDIT) == ["3", "2", "4", "1"]


def test_subscription_unused_and_full(driver: EngineDriver) -> None:
    """It refuses nothing; a paused one is used."""
    subscribe(driver, "orders", "audit", expires=60)
    driver.policy(AUDIT, max_backlog=1)
    driver.put("orders", "1")
    driver.later(100)
    assert driver.put("orders", "2")[0].outcome == "accepted"
    driver.policy(AUDIT, paused=True)
    assert driver.put("orders", "3")[0].outcome == "refused"


def test_subscription_unused_without_a_backlog(driver: EngineDriver) -> None:
    subscribe(driver, "orders", "audit", expires=60)
    driver.policy("orders", own_backlog=False)
    driver.put("orders", "1")
    driver.later(100)
    assert driver.put("orders", "2")[0].outcome == "unrouted"
    driver.put("in", "0")
    (lease,) = driver.lease(topics=["in"])
    settlement = Settlement(lease.handle, lease.fence)
    driver.engine.settle([settlement], publish={0: [Draft("orders", b"3")]}, now_us=driver.now)
    assert driver.waiting(AUDIT) == 1


# With other operations


def test_subscription_published_with_an_ack(driver: EngineDriver) -> None:
    """Copies belong to the ack's transaction, and a repeat of it makes no others."""
    subscribe(driver, "orders", "audit")
    driver.put("in", "0")
    (lease,) = driver.lease(topics=["in"])
    settlement = Settlement(lease.handle, lease.fence)
    drafts = {0: [Draft("orders", b"1"), Draft("orders", b"2")]}
    assert driver.engine.settle([settlement], publish=drafts, now_us=driver.now) == ["acked"]
    assert driver.engine.settle([settlement], publish=drafts, now_us=driver.now) == ["lost"]
    assert bodies_of(driver, AUDIT) == bodies_of(driver, "orders") == ["1", "2"]


def test_subscription_forwarded_by_a_spool(driver: EngineDriver) -> None:
    subscribe(driver, "orders", "audit")
    drafts = [Draft("orders", b"%d" % n, id=f"{n}", sticky=True) for n in range(3)]
    for _ in range(2):
        driver.engine.forward(drafts, spool="s", batch="1", now_us=driver.now)
    assert bodies_of(driver, AUDIT) == bodies_of(driver, "orders") == ["0", "1", "2"]


def test_subscription_spool_stops_at_a_full_subscription(driver: EngineDriver) -> None:
    """Later messages of the topic are refused, too: their order stays."""
    subscribe(driver, "orders", "audit", where={"type": "a"})
    driver.policy(AUDIT, max_backlog=1)
    drafts = [
        Draft("orders", b"%d" % n, id=f"{n}", sticky=True, headers={"type": kind})
        for n, kind in enumerate("aab")
    ]
    receipts = driver.engine.forward(drafts, spool="s", batch="1", now_us=driver.now)
    assert [receipt.outcome for receipt in receipts] == ["accepted", "refused", "refused"]
    bodies_of(driver, AUDIT)
    receipts = driver.engine.forward(drafts, spool="s", batch="1", now_us=driver.now)
    assert [receipt.outcome for receipt in receipts] == ["duplicate", "accepted", "accepted"]
    assert bodies_of(driver, "orders") == ["0", "1", "2"]


def test_subscription_many_copies_in_a_batch(driver: EngineDriver) -> None:
    """A batch with more copies than one call takes is put in parts; each message is whole."""
    names = [f"s{n}" for n in range(300)]
    subscribe(driver, "orders", *names)
    receipts = driver.put("orders", *map(str, range(20)))
    assert [receipt.outcome for receipt in receipts] == ["accepted"] * 20
    assert bodies_of(driver, "orders") == list(map(str, range(20)))
    for name in ("s0", "s150", "s299"):
        assert bodies_of(driver, f"orders#{name}") == list(map(str, range(20)))
    assert driver.engine.overview(now_us=driver.now).waiting == 20 * 297


def test_subscription_only_of_handlers(driver: EngineDriver) -> None:
    """Patterns of handlers name a subscription, or get none of its messages."""
    subscribe(driver, "orders.*", "audit", "billing")
    driver.put("orders.eu", "1")

    def topics(*only: str) -> set[str]:
        leases = driver.lease(only=only)
        driver.settle(leases, "release")
        return {lease.topic for lease in leases}

    assert topics("*") == topics("orders.*") == topics("orders.eu") == {"orders.eu"}
    assert topics("orders.*#audit") == topics("*#audit") == {"orders.eu#audit"}
    assert topics("orders.eu#billing", "orders.*") == {"orders.eu#billing", "orders.eu"}
    assert topics("stock.*", "stock.*#audit") == set()
    both = {"orders.eu#audit", "orders.eu#billing"}
    assert topics("orders.*#*") == topics("*#*") == topics("orders.eu#*") == both
    assert topics("orders#*", "stock.*#*") == set()


def test_subscription_partitions(driver: EngineDriver) -> None:
    """The copies of a partitioned topic are complete, in the order of each key."""
    subscribe(driver, "orders", "audit")
    driver.policy("orders", partitions=8)
    for n in range(40):
        driver.put("orders", f"{n % 4}:{n:02}", key=f"k{n % 4}")
        driver.put("orders", f"x:{n:02}")
    assert driver.waiting(AUDIT) == 80
    found = driver.run(1000, topics=[AUDIT])
    for prefix in "0123":
        mine = [body for body in found if body.startswith(prefix)]
        assert mine == sorted(mine)
        assert len(mine) == 10
    assert driver.engine.topic_stats("orders", now_us=driver.now).waiting == 80


def test_subscription_buckets(driver: EngineDriver) -> None:
    """A subscription of a folded topic has a lane of its own."""
    driver.policy("orders.*", buckets=4)
    subscribe(driver, "orders.*", "audit")
    for n in range(10):
        driver.put(f"orders.{n}", f"{n}")
    driver.policy("orders.3#audit", paused=True)
    assert sorted(driver.run(topics=[f"orders.{n}#audit" for n in range(10)])) == [
        f"{n}" for n in range(10) if n != 3
    ]
    assert driver.waiting("orders.3") == 1
    driver.policy("orders.3#audit", paused=None)
    assert bodies_of(driver, "orders.3#audit") == ["3"]


def test_subscription_bound(driver: EngineDriver) -> None:
    """A topic has at most 1,024, those of its patterns included."""
    subscribe(driver, "orders.*", *(f"p{n}" for n in range(1_000)))
    subscribe(driver, "orders.eu", *(f"t{n}" for n in range(24)))
    with pytest.raises(BadPolicy, match=r"at most 1,024 subscriptions of a topic, got 1,025"):
        subscribe(driver, "orders.eu", "more")
    with pytest.raises(BadPolicy, match=r"policy orders\.\*: expected at most 1,024"):
        subscribe(driver, "orders.*", *(f"q{n}" for n in range(25)))
    subscribe(driver, "orders.eu", "t0", kind="shared")


@pytest.mark.parametrize("subscribed", [False, True])
@pytest.mark.parametrize("option", ["at_us", "headers"])
def test_a_message_that_is_not_stored_is_checked_too(
    driver: EngineDriver, option: str, subscribed: bool
) -> None:
    """Without a backlog of its own, a topic refuses what expires too early or costs too much."""
    driver.policy("a", own_backlog=False, ttl=2, max_cost=5)
    if subscribed:
        driver.policy("a", **{"subscription:s": {}})  # type: ignore[arg-type]
    bad = {"at_us": driver.now + 3 * SECOND, "headers": {"laneway-cost": "50"}}
    with pytest.raises(BadMessage):
        driver.put("a", "x", **{option: bad[option]})
