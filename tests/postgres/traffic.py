"""Publishers and a worker on a server that a test makes fail."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Self

from laneway import Laneway, Message
from laneway.errors import EngineUnavailable
from laneway.testing.servers import until
from tests.postgres.conftest import some
from tests.working.support import Running

if TYPE_CHECKING:
    from laneway.engines.base import FullEngine

BATCH = 20


class Publisher(threading.Thread):
    """
    Publishes until it is stopped, and publishes again with the same ids where it has no answer.
    """

    def __init__(self, engine: FullEngine, name: str) -> None:
        super().__init__(daemon=True)
        self.engine, self.letter = engine, name
        self.accepted: set[str] = set()
        self.last_failure = ""
        self._ends = threading.Event()
        self.start()

    def run(self) -> None:
        n = 0
        while not self._ends.is_set():
            drafts = some(BATCH, start=n)
            for draft in drafts:
                draft.id = f"{self.letter}{draft.id}"
            try:
                receipts = self.engine.put(drafts)
            except EngineUnavailable as error:
                self.last_failure = str(error)
                time.sleep(0.01)  # as callers back off; the server is away
                continue
            assert {receipt.outcome for receipt in receipts} <= {"accepted", "duplicate"}
            self.accepted |= {receipt.id for receipt in receipts}
            n += BATCH

    def end(self) -> set[str]:
        self._ends.set()
        self.join(60)
        assert not self.is_alive()
        return self.accepted

    def wait_for(self, more: int) -> None:
        """Until so many more are accepted."""
        wanted = len(self.accepted) + more
        try:
            until(lambda: len(self.accepted) >= wanted, f"{more} more accepted messages", 100)
        except TimeoutError as error:
            error.add_note(f"publishing goes on: {self.is_alive()}; {self.last_failure}")
            raise


class Traffic:
    """Two publishers, each with its own ids, and a worker that counts what it handles."""

    def __init__(self, url: str, namespace: str, **settings: object) -> None:
        self._app = Laneway(url, namespace=namespace, **settings)  # type: ignore[arg-type]
        self._app.policy("*", backoff=0, retries=100, lease=2)
        self.handled: Counter[str] = Counter()

        @self._app.handler("t.*")
        def handle(message: Message) -> None:
            self.handled[message.id] += 1

        self.publishers = [Publisher(self._app.engine, name) for name in "ab"]
        self._worker = Running(self._app)

    def wait_for_more(self) -> None:
        """Until each publisher and the worker have done something since now."""
        for publisher in self.publishers:
            publisher.wait_for(2 * BATCH)
        count = len(self.handled)
        until(lambda: len(self.handled) > count, "the worker continues")

    def wait_for_a_failure(self) -> None:
        """Until a publisher has seen that a call failed."""
        for publisher in self.publishers:
            publisher.last_failure = ""
        until(lambda: any(each.last_failure for each in self.publishers), "a call fails")

    def end(self) -> set[str]:
        """Stop publishing, and wait until all is handled; returns the accepted ids."""
        accepted = set.union(*(publisher.end() for publisher in self.publishers))
        engine = self._app.engine

        def is_done() -> bool:
            overview = engine.overview()
            return not overview.waiting + overview.leased

        until(is_done, "the worker handles everything")
        overview = engine.overview()
        assert set(self.handled) >= accepted, "nothing is lost"
        assert overview.done == overview.published == len(self.handled), "nothing is done twice"
        assert [check for check in engine.doctor() if not check.ok] == []
        return accepted

    def __enter__(self) -> Self:
        self._worker.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for publisher in self.publishers:
            publisher.end()
        self._worker.__exit__()
        self._app.close()
