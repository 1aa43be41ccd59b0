"""Records outside the queue: compare and swap, by kind and name."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import pytest

from laneway.testing.engine_driver import EngineDriver


def test_swap_of_a_record(driver: EngineDriver) -> None:
    """A record is replaced or removed only by a caller who knows the present one."""
    engine = driver.engine
    assert engine.record_read("token", ["a"]) == [None]
    assert engine.record_swap("token", "a", None, b'{"n":1}')
    assert not engine.record_swap("token", "a", None, b'{"n":2}')
    assert not engine.record_swap("token", "a", b"{}", b'{"n":2}')
    assert not engine.record_swap("token", "a", b"{}", None)
    assert not engine.record_swap("token", "a", None, None)
    assert engine.record_swap("token", "a", b'{"n":1}', b'{"n":2}')
    assert engine.record_read("token", ["b", "a"]) == [None, b'{"n":2}']
    assert engine.record_swap("token", "a", b'{"n":2}', None)
    assert engine.record_swap("token", "a", None, None)
    assert engine.record_read("token", ["a"]) == [None]
    assert engine.record_read("token", []) == []


def test_records_by_kind_and_name(driver: EngineDriver) -> None:
    """Kinds do not mix; names are listed in order, page by page, whatever characters they have."""
    engine = driver.engine
    names = ["a", "a b", "b:{x}", "index", "z\n", "ä", "\U0001f600"]
    for name in reversed(names):
        assert engine.record_swap("token", name, None, b'"%d"' % len(name))
    assert engine.record_swap("audit", "b", None, b"{}")
    assert engine.records("token") == [(name, b'"%d"' % len(name)) for name in names]
    assert [name for name, _ in engine.records("token", limit=2)] == names[:2]
    assert [name for name, _ in engine.records("token", limit=3, after="a b")] == names[2:5]
    assert engine.records("token", after=names[-1]) == []
    assert engine.records("audit") == [("b", b"{}")]
    assert engine.records("gateway") == []


@pytest.mark.parametrize("kind", ["token", "election"])
def test_one_of_many_writers(driver: EngineDriver, kind: Literal["token", "election"]) -> None:
    """Of many callers that know the same record, exactly one replaces it."""
    engine, before = driver.engine, None

    def swap(record: bytes) -> bool:
        if kind == "election":
            return engine.election_swap("a", before, record)
        return engine.record_swap(kind, "a", before, record)

    with ThreadPoolExecutor(8) as threads:
        for turn in range(8):
            records = [b'{"n":%d}' % (turn * 8 + n) for n in range(8)]
            won = list(threads.map(swap, records))
            assert won.count(True) == 1
            before = records[won.index(True)]
    (record,) = engine.record_read("token", ["a"])
    assert before == (engine.election_read("a")[0] if kind == "election" else record)


def test_many_changes_at_once(driver: EngineDriver) -> None:
    """Each change of a batch is for itself; endpoints are listed by name, page by page."""
    engine = driver.engine
    names = [f"push.{n:03d}" for n in range(250)] + ["push.acme#crm", "ä", "\U0001f600"]
    assert engine.record_swap_many("endpoint", [(name, None, b"{}") for name in names]) == [
        True
    ] * len(names)
    assert engine.record_swap_many(
        "endpoint",
        [
            (names[0], b"{}", b"[0]"),
            (names[1], b"[]", b"[1]"),
            (names[2], b"{}", None),
            ("new", None, b"[2]"),
            (names[3], None, b"[3]"),
        ],
    ) == [True, False, True, True, False]
    left = sorted({*names, "new"} - {names[2]})
    listed: list[str] = []
    after = ""
    while page := engine.records("endpoint", limit=100, after=after):
        assert len(page) == min(100, len(left) - len(listed))
        listed += [name for name, _ in page]
        after = listed[-1]
    assert listed == left
    assert engine.record_read("endpoint", [names[0], names[2], "new"]) == [b"[0]", None, b"[2]"]
    assert engine.record_swap_many("endpoint", []) == []
