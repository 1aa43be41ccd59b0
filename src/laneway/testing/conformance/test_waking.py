"""Who is told that something came."""

from __future__ import annotations

import threading

from laneway.testing.bench import EngineBench

SOON, NOT_YET = 10.0, 0.2


def test_who_is_busy_hears_of_what_comes_to_a_quiet_topic(bench: EngineBench) -> None:
    """Not of more that comes to a lane which could deliver already: he has that in hand."""
    ear = bench.engine.arrivals()
    try:
        assert not ear.listen(NOT_YET), "nothing came yet"
        bench.put("busy", "1")
        assert ear.listen(SOON)
        bench.put("busy", "2", "3")
        assert not ear.listen(NOT_YET)
        for topic in ("quiet", "other"):
            bench.put(topic, "1")
            assert ear.listen(SOON), "each time anew"
    finally:
        ear.close()
    bench.put("later", "1")  # nobody listens any more


def test_another_pool_is_not_told_of(bench: EngineBench) -> None:
    bench.policy("gpu.*", pool="gpu")
    ear = bench.engine.arrivals("gpu")
    try:
        assert not ear.listen(NOT_YET)
        bench.put("a", "1")
        assert not ear.listen(NOT_YET)
        bench.put("gpu.a", "1")
        assert ear.listen(SOON)
    finally:
        ear.close()


def test_listening_is_ended_from_outside(bench: EngineBench) -> None:
    ear = bench.engine.arrivals()
    told: list[bool] = []
    listener = threading.Thread(target=lambda: told.append(ear.listen(SOON)))
    listener.start()
    ear.wake()
    listener.join(SOON / 2)
    assert told == [False]
    ear.close()
