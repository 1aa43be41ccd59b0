"""`delivery_log_append` and `delivery_log_read`: bounded, by topic and by time."""

from __future__ import annotations

from laneway.engines.base import LogEntry
from laneway.testing.engine_driver import EngineDriver
from laneway.units import SECOND

HOUR = 3_600 * SECOND
MUCH = 1 << 30


def append(driver: EngineDriver, topic: str, *texts: bytes, keep_us: int = HOUR) -> None:
    entries = [LogEntry(topic, driver.now + n, text) for n, text in enumerate(texts)]
    driver.engine.delivery_log_append(entries, keep_us=keep_us, max_bytes=MUCH, now_us=driver.now)


def read(driver: EngineDriver, topic: str | None = None, **options: int) -> list[bytes]:
    found = driver.engine.delivery_log_read(topic, **options)
    return [entry.data for _, entry in found]


def test_a_page_of_the_log_is_the_newest_entries(driver: EngineDriver) -> None:
    """Of one topic or of all, page by page; data is any bytes."""
    assert read(driver) == read(driver, "push.a") == []
    append(driver, "push.a", b"a1", b"\x00\xff")
    driver.now += SECOND
    append(driver, "push.b", b"b1")
    driver.now += SECOND
    append(driver, "push.a", b"a3")
    append(driver, "push.a#crm", b"other topic")
    assert read(driver, "push.a") == [b"a3", b"\x00\xff", b"a1"]
    assert read(driver, "push.b") == [b"b1"]
    assert read(driver, "push") == []
    assert sorted(read(driver)) == sorted([b"a1", b"\x00\xff", b"b1", b"a3", b"other topic"])
    for topic in ("push.a", None):
        whole, paged, before = driver.engine.delivery_log_read(topic), [], None
        while page := driver.engine.delivery_log_read(topic, limit=1, before=before):
            paged += page
            before = page[-1][0]
        assert paged == whole
        assert [number for number, _ in whole] == sorted({n for n, _ in whole}, reverse=True)
    ((_, newest),) = driver.engine.delivery_log_read("push.a", limit=1)
    assert newest == LogEntry("push.a", driver.now, b"a3")


def test_entries_appended_until_a_time(driver: EngineDriver) -> None:
    """The bound is inclusive, and holds for a topic and for all."""
    for n in range(3):
        append(driver, "push.a", b"%d" % n)
        driver.now += SECOND
    until = driver.now - 2 * SECOND
    assert read(driver, "push.a", until_us=until) == read(driver, until_us=until) == [b"1", b"0"]


def test_entries_of_another_store(driver: EngineDriver) -> None:
    """They are found by the time that they have there; numbers grow all the same."""
    for n in (2, 1):  # the second one is not the newest any more
        at_us = driver.now - n * HOUR
        driver.engine.delivery_log_append(
            [LogEntry("push.a", at_us, b"%d" % n)],
            keep_us=9 * HOUR,
            max_bytes=MUCH,
            from_us=at_us,
            now_us=driver.now,
        )
        assert read(driver, "push.a", until_us=at_us)[0] == b"%d" % n
    assert read(driver, "push.a") == [b"1", b"2"]


def test_old_entries_are_removed(driver: EngineDriver) -> None:
    """With the next entry of their shard; a topic of which all are removed is empty."""
    append(driver, "push.a", b"old")
    append(driver, "push.a#gone", b"old")
    driver.now += HOUR + SECOND
    append(driver, "push.a", b"new")
    assert read(driver, "push.a") == [b"new"]
    assert read(driver, "push.a#gone") == []
    assert read(driver) == [b"new"]


def test_no_entries(driver: EngineDriver) -> None:
    """A call without entries changes nothing of those that are kept."""
    append(driver, "push.a", b"kept")
    driver.engine.delivery_log_append([], keep_us=HOUR, max_bytes=1_000_000, now_us=driver.now)
    assert read(driver) == [b"kept"]


def test_the_log_has_a_size(driver: EngineDriver) -> None:
    """The oldest entries are removed, of whichever topic."""
    bound = 1_000_000 * driver.engine.capabilities.shards
    for n in range(30):
        entries = [LogEntry(f"push.{n}", driver.now, b"x" * 1_000)] * 100
        driver.engine.delivery_log_append(entries, keep_us=HOUR, max_bytes=bound, now_us=driver.now)
        driver.now += SECOND
    found = driver.engine.delivery_log_read(limit=10_000)
    if driver.engine.capabilities.shards == 1:
        assert 500 < len(found) <= 1_100
        assert read(driver, "push.0") == []
    assert found[0][1].topic == "push.29"
    assert len(read(driver, "push.29", limit=200)) == 100
