"""Records of elections: compare and swap, and the time that terms are of."""

from __future__ import annotations

from laneway.testing.engine_driver import EngineDriver


def test_election_record(driver: EngineDriver) -> None:
    """A record is replaced only by a caller who knows the present one; the others stay."""
    engine = driver.engine
    assert engine.election_read("index", now_us=driver.now) == (None, driver.now)
    assert engine.election_swap("index", None, b'{"number":1}')
    assert not engine.election_swap("index", None, b'{"number":2}')
    assert not engine.election_swap("index", b"{}", b'{"number":2}', durable=False)
    assert engine.election_swap("other", None, b"{}")
    assert engine.election_swap("index", b'{"number":1}', b'{"number":2}', durable=False)
    assert engine.election_read("index", now_us=driver.now)[0] == b'{"number":2}'
    assert engine.election_read("other", now_us=driver.now)[0] == b"{}"


def test_elections_by_name(driver: EngineDriver) -> None:
    """Names are listed in order, page by page, whatever characters they have."""
    names = ["a", "a b", "b:{x}", "index", "z\n", "ä", "\U0001f600"]
    for name in reversed(names):
        assert driver.engine.election_swap(name, None, b"{}")
    assert driver.engine.elections() == names
    assert driver.engine.elections(limit=2) == names[:2]
    assert driver.engine.elections(limit=3, after="a b") == names[2:5]
    assert driver.engine.elections(after=names[-1]) == []


def test_time_of_an_election(driver: EngineDriver) -> None:
    """The time that is read with a record is the engine's, which never goes back."""
    driver.put("a", "x")
    for name in ("a", "b", "c", "d", "e"):
        _, now = driver.engine.election_read(name, now_us=driver.now + 1)
        assert now == driver.now + 1
    records = [driver.engine.election_read("a") for _ in range(10)]
    assert [now for _, now in records] == sorted(now for _, now in records)
