"""Names whose servers hang, are slow, or change: what they cost their endpoint, and others."""

from __future__ import annotations

import itertools
import queue
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from laneway import Laneway
from laneway.push import breaker, resolver
from laneway.push.resolver import Resolver, domain_of
from tests.push.receiver import Receiver
from tests.push.test_failing import running, wait_for


class Names:
    """Servers of names: those below `hang.example` answer when `released` is set."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.problem: OSError | None = None
        self.asked: Counter[str] = Counter()
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self._lock = threading.Lock()

    def look_up(self, name: str) -> list[str]:
        domain = domain_of(name)
        with self._lock:
            self.asked[name] += 1
            self.running[domain] += 1
            self.most[domain] = max(self.most[domain], self.running[domain])
        try:
            if "hang" in domain:
                assert self.released.wait(120)
            if self.problem is not None:
                raise self.problem
            return ["127.0.0.1"]
        finally:
            with self._lock:
                self.running[domain] -= 1


@pytest.fixture
def names(app: Laneway) -> Iterator[Names]:
    found = Names()
    (handler, *_) = app.runtime.handlers.by_pattern()
    handler.settings.lookup = found.look_up  # type: ignore[attr-defined]
    yield found
    found.released.set()


def test_names_that_hang_hold_up_nobody(
    app: Laneway, receiver: Receiver, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    More of them than slots and threads: their topics wait, and the others' messages are sent. It
    is no failure of either; nor is a wait for a thread. A name that is answered at last is used.
    """
    monkeypatch.setattr(resolver, "MAX_THREADS", 60)
    monkeypatch.setattr(resolver, "LOOKUP_SECONDS", 600.0)
    monkeypatch.setattr("laneway.push.sender.SLOW_NAME_SECONDS", 0.05)
    for n in range(50):
        url = f"http://hooks.hang{n}.example:{receiver.port}/200"
        app.endpoint(f"push.hang{n}", url=url, allow_private=True)
        app.publish(f"push.hang{n}", n)
    with running(app):
        wait_for(lambda: sum(names.asked.values()) == 50)
        for n in range(20):
            url = f"http://good{n}.example:{receiver.port}/200"
            app.endpoint(f"push.good{n}", url=url, allow_private=True)
            app.publish(f"push.good{n}", n)
        wait_for(lambda: len(receiver.requests) == 20)
        assert all(each.headers["host"].startswith("good") for each in receiver.requests)
        assert {each.state for each in app.endpoints.list()} == {"healthy"}
        names.released.set()
        wait_for(lambda: len(receiver.requests) == 70)
    assert {each.headers["webhook-attempt"] for each in receiver.requests} == {"1"}
    assert max(names.asked.values()) == 1


def test_names_that_hang_are_not_tried_again_together(
    app: Laneway,
    receiver: Receiver,
    names: Names,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Their topics back off for random times, so that they do not all take slots at one moment."""
    monkeypatch.setattr("laneway.push.sender.NAME_SECONDS", 0.01)
    monkeypatch.setattr("laneway.push.sender.AGAIN_SECONDS", 600.0)
    monkeypatch.setattr("random.uniform", lambda low, high: (2 * low + high) / 3)
    url = f"http://hang.example:{receiver.port}/200"
    app.endpoint("push.x", url=url, allow_private=True)
    app.publish("push.x", 1)
    with running(app):
        wait_for(lambda: "the address of hang.example is being looked up" in caplog.text)
    seconds = 600 * (1 - breaker.JITTER / 3)
    assert f"backs off for {seconds:.1f} s" in caplog.text


def test_a_name_without_an_answer_opens_the_breaker_at_once(
    app: Laneway, receiver: Receiver, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message finds it out; no other one is tried, and none uses an attempt."""
    monkeypatch.setattr(resolver, "LOOKUP_SECONDS", 0.05)
    app.policy("push.x", retries=0)
    url = f"http://hang.example:{receiver.port}/200"
    endpoint = app.endpoint("push.x", url=url, allow_private=True)
    for n in range(3):
        app.publish("push.x", n)
    with running(app):
        wait_for(lambda: endpoint.info().state == "open")
    assert names.asked == {"hang.example": 1}
    (attempt,) = endpoint.attempts(status="dns").attempts
    assert attempt.text == "dns: hang.example: no answer within 0.05 s"
    counts = app.topic("push.x").stats()
    assert (counts.waiting, counts.dead) == (3, 0)


def test_a_proxy_that_is_not_found_is_no_fault_of_endpoints(
    app: Laneway, receiver: Receiver, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender's own: its messages go back until it is found; no other name is looked up."""
    monkeypatch.setattr("laneway.push.sender.NO_SOCKET_SECONDS", 0.01)
    monkeypatch.setattr("laneway.push.sender.SLOW_NAME_SECONDS", 0.01)
    monkeypatch.setattr(resolver, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(resolver, "MAX_AGAIN_SECONDS", 0.01)
    names.problem = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    (handler, *_) = app.runtime.handlers.by_pattern()
    proxy = f"http://proxy.example:{receiver.port}"
    handler.settings.proxy = proxy  # type: ignore[attr-defined]
    endpoint = app.endpoint("push.x", url="http://acme.example/200", allow_http=True)
    app.publish("push.x", 1)
    with running(app):
        wait_for(lambda: names.asked["proxy.example"] > 2)
        names.problem = None
        wait_for(lambda: len(receiver.requests) == 1)
        wait_for(lambda: app.topic("push.x").stats().done == 1)
    assert receiver.requests[0].headers["webhook-attempt"] == "1"
    assert endpoint.info().failures == 0
    assert set(names.asked) == {"proxy.example"}


def test_a_proxy_that_does_not_listen_is_no_fault_of_endpoints(
    app: Laneway, receiver: Receiver
) -> None:
    """The sender's own: its messages go back, and no attempt is counted."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        (handler, *_) = app.runtime.handlers.by_pattern()
        proxy = f"http://127.0.0.1:{closed.getsockname()[1]}"
        handler.settings.proxy = proxy  # type: ignore[attr-defined]
        endpoint = app.endpoint("push.x", url="http://acme.example/200", allow_http=True)
        app.publish("push.x", 1)
        app.run_worker(burst=True)
    assert app.topic("push.x").peek(1)[0].attempt == 1
    assert app.topic("push.x").stats().backs_off_until_us is not None
    assert endpoint.info().failures == 0
    assert endpoint.attempts().attempts == []


class Loop:
    """An event loop whose clock the test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_soon_threadsafe(self, call: Callable[..., None], *arguments: Any) -> None:
        self._calls.put(lambda: call(*arguments))

    def call_later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> Timer:
        self._timers.append(Timer(self.now + seconds, lambda: call(*arguments)))
        return self._timers[-1]

    def run_one(self) -> None:
        """Wait for the end of a look-up."""
        self._calls.get(timeout=60)()

    def move(self, seconds: float) -> None:
        self.now += seconds
        due = [each for each in self._timers if each.at <= self.now]
        self._timers = [each for each in self._timers if each.at > self.now]
        for each in due:
            each.call()


class Timer:
    def __init__(self, at: float, call: Callable[[], None]) -> None:
        self.at, self.call = at, call

    def cancel(self) -> None:
        self.call = lambda: None


def start() -> tuple[Loop, Names, Resolver]:
    loop, names = Loop(), Names()
    create: Any = Resolver
    return loop, names, create(loop, names.look_up)


def test_addresses_are_used_while_they_are_looked_up_again() -> None:
    """For an hour if no server answers; not if the name is gone."""
    loop, names, known = start()
    host = known.find("acme.example")
    loop.run_one()
    assert host.addresses == "127.0.0.1"
    names.problem = socket.gaierror(socket.EAI_AGAIN, "Temporary failure")
    for seconds, is_usable in ((61, True), (3_000, True), (600, False)):
        loop.move(seconds)
        assert known.find("acme.example") is host
        loop.run_one()
        assert bool(host.addresses) == is_usable
    assert host.problem == "Temporary failure"
    names.problem = None
    loop.move(resolver.MAX_AGAIN_SECONDS)
    known.find("acme.example")
    loop.run_one()
    assert (host.addresses, host.problem) == ("127.0.0.1", "")
    names.problem = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    loop.move(61)
    known.find("acme.example")
    loop.run_one()
    assert (host.addresses, host.problem) == ("", "Name or service not known")


def test_a_name_that_is_not_found_is_asked_for_less_often() -> None:
    loop, names, known = start()
    names.problem = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    times = []
    for _ in range(1_000):
        if not known.find("acme.example").problem:
            times.append(loop.now)
            loop.run_one()
        loop.move(1)
    waits = [after - before for before, after in itertools.pairwise(times)]
    assert waits[:7] == [5, 10, 20, 40, 80, 150, 150]


def test_this_machines_fault_is_no_problem_of_the_name() -> None:
    loop, names, known = start()
    names.problem = OSError(24, "Too many open files")
    host = known.find("acme.example")
    loop.run_one()
    assert (host.addresses, host.problem, host.failures) == ("", "", 0)
    names.problem = None
    loop.move(1)
    known.find("acme.example")
    loop.run_one()
    assert host.addresses == "127.0.0.1"


def test_threads_are_divided_among_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A domain has few of them, and names that failed have half: new names are looked up."""
    monkeypatch.setattr(resolver, "MAX_THREADS", 8)
    loop, names, known = start()
    for n in range(100):
        known.find(f"{n}.hang.example")
    good = known.find("good.example")
    loop.run_one()
    assert good.addresses
    loop.move(resolver.LOOKUP_SECONDS)
    assert known.find("0.hang.example").problem == "no answer within 5 s"
    assert known.find("99.hang.example").problem == ""  # it waits for a thread
    wait_for(lambda: names.running["hang.example"] == resolver.MAX_OF_DOMAIN)
    names.released.set()
    for _ in range(100):
        loop.run_one()
    assert names.most["hang.example"] == resolver.MAX_OF_DOMAIN
    assert all(known.find(f"{n}.hang.example").addresses for n in range(100))
    # Names of many domains that failed
    names.problem = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    lost = [f"hang{n}.example" for n in range(20)]
    for name in lost:
        known.find(name)
        loop.run_one()
    names.problem = None
    names.released.clear()
    loop.move(resolver.AGAIN_SECONDS)
    for name in lost:
        known.find(name)
    new = known.find("new.example")
    loop.run_one()
    assert new.addresses
    assert names.running.total() <= 4
    names.released.set()
    for _ in lost:
        loop.run_one()


def test_the_loop_does_not_wait_for_a_look_ups_thread() -> None:
    """Each thread's first turn would cost the loop 5 ms if another thread computes meanwhile."""
    loop, _, known = start()
    is_over = threading.Event()

    def compute() -> None:
        while not is_over.is_set():
            pass

    before = sys.getswitchinterval()
    thread = threading.Thread(target=compute)
    thread.start()
    try:
        sys.setswitchinterval(0.2)
        began = time.perf_counter()
        for n in range(20):
            known.find(f"{n}.{n}.example")
        seconds = time.perf_counter() - began
    finally:
        sys.setswitchinterval(before)
        is_over.set()
        thread.join()
    for _ in range(20):
        loop.run_one()
    assert seconds < 2


def test_refused_addresses_are_looked_up_again() -> None:
    """But not within 5 s."""
    loop, _, known = start()
    host = known.find("acme.example")
    loop.run_one()
    known.doubt("acme.example")
    assert host.addresses
    loop.move(resolver.AGAIN_SECONDS)
    known.doubt("acme.example")
    known.find("acme.example")
    assert not host.addresses
    loop.run_one()
    assert host.addresses


def test_known_hosts_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolver, "MAX_HOSTS", 10)
    loop, names, known = start()
    for n in range(25):
        known.find(f"{n}.example")
        loop.run_one()
    assert len(known._hosts) <= 10
    for n in range(30):
        known.find(f"hang{n}.example")
    assert len(known._hosts) <= 10
    names.released.set()


def test_addresses_as_libcurl_takes_them() -> None:
    loop, _, known = start()
    known._lookup = lambda _: ["fe80::1%eth0", "::1", "10.0.0.1", "10.0.0.1"]
    host = known.find("acme.example")
    loop.run_one()
    assert host.addresses == "[::1],10.0.0.1"
    known._lookup = lambda _: ["fe80::1%eth0"]
    host = known.find("link.example")
    loop.run_one()
    assert host.problem == "the name has no address"


@pytest.mark.parametrize(
    ("name", "domain"),
    [
        ("a.b.acme.example", "acme.example"),
        ("Hooks.ACME.example.", "acme.example"),
        ("x.acme.co.uk", "acme.co.uk"),
        ("x.acme.de", "acme.de"),
        ("localhost", "localhost"),
    ],
)
def test_registrable_domain(name: str, domain: str) -> None:
    assert domain_of(name) == domain
