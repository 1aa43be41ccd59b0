"""
Producers with a spool, and their store, killed by SIGKILL at random moments: each message that
`publish` returned for reaches the store once, and in the order of its topic.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from laneway import EngineUnavailable, Laneway
from laneway.message import Settlement
from laneway.testing.servers import Server
from tests.seeds import seed_for

ROUNDS = int(os.environ.get("LANEWAY_KILLS", "8"))
TOPICS = 5

PRODUCER = """
import itertools, random, sys, time
from laneway import Laneway, Spool
url, spool, log, seed = sys.argv[1:]
draw = random.Random(int(seed))
app = Laneway(url, spool=Spool(spool, exit_timeout=0))
with open(log, "a", buffering=1) as published:
    for number in itertools.count():
        topic = f"t.{draw.randrange(5)}"
        if draw.random() < 0.9:
            ids = [app.publish(topic, number).id]
        else:
            from laneway import Message
            ids = [r.id for r in app.publish_many(Message(topic, number) for _ in range(20))]
        published.write("".join(f"{topic} {each}\\n" for each in ids))
        time.sleep(draw.choice([0, 0, 0.002, 0.01]))  # no more than can be checked afterwards
"""
"""Logs the topics and ids that `publish` has returned for."""


@pytest.mark.parametrize("store", ["sqlite", "valkey"])
def test_nothing_is_lost_or_doubled(tmp_path: Path, store: str) -> None:
    """
    Two producers share a spool. In each round one of them, or the store, is killed, while a
    consumer acks, so that ids end early. Each id is delivered as one message.
    """
    seed = seed_for("LANEWAY_KILLS")
    print(f"LANEWAY_SEED={seed}")
    draw = random.Random(seed)
    with ExitStack() as stack:
        server = None
        url = f"sqlite:///{tmp_path}/q.db"
        if store == "valkey":
            server = stack.enter_context(Server(appendonly="yes", appendfsync="always"))
            url = server.url
        consumer = Consumer(url)
        stack.callback(consumer.app.close)
        alive: list[tuple[subprocess.Popen[bytes], Path]] = []
        try:
            for number in range(ROUNDS):
                while len(alive) < 2:
                    alive.append(start(tmp_path, url, f"{number}.{len(alive)}", draw))
                wait_for_log(*alive[-1])
                consumer.take()
                time.sleep(draw.uniform(0, 0.15))  # the moment of the kill is what is random
                if server is not None and draw.random() < 0.5:
                    server.kill()
                    time.sleep(draw.uniform(0, 0.1))
                    server.start()
                else:
                    process, _ = alive.pop(draw.randrange(len(alive)))
                    process.kill()
                    process.wait()
        finally:
            for process, _ in alive:
                process.kill()
                process.wait()
        with Laneway(url, spool=tmp_path / "spool.db") as app:
            assert app.flush(120) == 0
            assert app.spool_status().rejected == 0
        consumer.take_all()
    check(tmp_path, consumer)


class Consumer:
    """Acks what it leases, and remembers which messages it has seen."""

    def __init__(self, url: str) -> None:
        self.app = Laneway(url)
        self.app.policy("*", lease=2, retries=1_000_000)
        self.seen: dict[str, set[int]] = {}
        """The numbers of the messages with each id."""
        self.first: dict[str, list[str]] = {}
        """The ids of each topic, in the order in which they came first."""

    def take(self) -> bool:
        """Lease and ack some. False: nothing was there."""
        try:
            leases = self.app.engine.lease(500).leases
            for lease in leases:
                if lease.id not in self.seen:
                    self.first.setdefault(lease.topic, []).append(lease.id)
                self.seen.setdefault(lease.id, set()).add(lease.handle)
            if leases:
                self.app.engine.settle([Settlement(each.handle, each.fence) for each in leases])
        except EngineUnavailable:
            return True  # the store was just killed
        return bool(leases)

    def take_all(self) -> None:
        """Lease until nothing is there, also no lost lease."""
        deadline = time.monotonic() + 60
        while self.take() or self.app.engine.overview().waiting + self.app.engine.overview().leased:
            assert time.monotonic() < deadline
            self.app.engine.wait(0.05)


def start(
    folder: Path, url: str, name: str, draw: random.Random
) -> tuple[subprocess.Popen[bytes], Path]:
    log = folder / f"producer.{name}.{draw.randrange(1 << 30)}.log"
    command = [
        sys.executable,
        "-c",
        PRODUCER,
        url,
        str(folder / "spool.db"),
        str(log),
        str(draw.randrange(1 << 30)),
    ]
    return subprocess.Popen(command), log


def wait_for_log(process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the producer has published something."""
    deadline = time.monotonic() + 60
    while not log.exists() or not log.stat().st_size:
        assert process.poll() is None, "the producer ended"
        assert time.monotonic() < deadline, "the producer does not publish"
        time.sleep(0.005)


def check(folder: Path, consumer: Consumer) -> None:
    count = 0
    for log in folder.glob("producer.*.log"):
        published: dict[str, list[str]] = {}
        for line in log.read_text().split("\n")[:-1]:
            topic, message_id = line.split()
            published.setdefault(topic, []).append(message_id)
        for topic, ids in published.items():
            count += len(ids)
            lost = [each for each in ids if each not in consumer.seen]
            assert not lost, f"{len(lost)} of {len(ids)} messages to {topic} are lost"
            own = set(ids)
            came = [each for each in consumer.first[topic] if each in own]
            assert came == ids, f"messages to {topic} changed their order"
    doubled = [each for each, messages in consumer.seen.items() if len(messages) > 1]
    print(f"{count:,} published, {len(consumer.seen):,} delivered, {len(doubled)} doubled")
    assert not doubled
    assert count > ROUNDS
