"""`Election`: a singleton among all processes of a program."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

from laneway import arguments
from laneway.awaitable import async_variant
from laneway.cluster.campaign import Campaign
from laneway.cluster.career import Career, check_career
from laneway.cluster.renewal import TermTimes
from laneway.cluster.term_store import ElectionState, EngineTerms, TermStore
from laneway.errors import UsageError
from laneway.runtime.runtime import Noun, Runtime
from laneway.units import Duration
from laneway.working.embedded_worker import refuse_running_loop
from laneway.working.event_loop import cancel_tasks, caught, run_to_end
from laneway.working.user_imports import refuse_while_importing

log = logging.getLogger("laneway.election")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

LEAST_TERM, MOST_TERM = 0.5, 3600.0
"""Limits in seconds: any pause would lose a shorter term; a longer one would delay a successor."""

MAX_NAME = 200
"""Characters of an election's name."""

LOOK_AGAIN = 0.1
"""Seconds between two checks whether a holder has stepped down."""


class Election(Noun):
    """
    An election: one of the processes that run it holds its term; see `Laneway.election`.

    `run` and `arun` make this process a candidate. `state` and `step_down` work in any process.
    """

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        career: Callable[[], Career] | None,
        times: TermTimes,
        zookeeper: str | None,
    ) -> None:
        super().__init__(runtime)
        self.name = name
        self.times = times
        self._make = career
        self._zookeeper = zookeeper
        self._lock = threading.Lock()
        self._campaign: Campaign | None = None
        self._pid = 0  # the campaign's: a forked child has none of its parent's

    # Being a candidate

    def run(self, *, terms: int | None = None) -> int:
        """
        Be a candidate until `stop`, SIGTERM or SIGINT, and serve every term that it wins. A holder
        that is stopped hands over first; a second signal ends it immediately.

        `terms`: end after having held this many. The career's plain functions run in their own
        thread, one after the other; coroutine functions on an event loop in this thread. Returns
        the number of terms held. Raises UsageError if an event loop runs in this thread (use
        `arun`), or if this election already runs in this process.
        """
        refuse_while_importing("election.run")
        refuse_running_loop("election.run")
        with self._running(terms) as campaign:
            return _run(campaign)

    async def arun(self, *, terms: int | None = None) -> int:
        """
        Like `run`, on the running event loop, without signals. If it is cancelled, a holder hands
        over first; if it is cancelled again, it ends immediately.
        """
        with self._running(terms) as campaign:
            return await campaign.arun()

    def start(self) -> threading.Thread:
        """
        Be a candidate in a separate thread until `stop`, while the process does other work. Returns
        the thread. Raises UsageError if this election already runs in this process.
        """
        refuse_while_importing("election.start")
        running = contextlib.ExitStack()
        campaign = running.enter_context(self._running(None))  # immediately, so that `stop` ends it
        thread = threading.Thread(
            target=self._run_in_thread,
            args=(campaign, running),
            name=f"laneway-election-{self.name}",
            daemon=True,
        )
        try:
            thread.start()
        except BaseException:
            running.close()
            raise
        return thread

    def stop(self) -> None:
        """
        End this process's candidacy; if it holds the term, it hands over first. Can be called
        from any thread; does not wait.
        """
        with self._lock:
            campaign = self._campaign if self._pid == os.getpid() else None
        if campaign is not None:
            campaign.stop()

    def _run_in_thread(self, campaign: Campaign, running: contextlib.ExitStack) -> None:
        with running:
            try:
                _run(campaign)
            except Exception:
                log.exception("election %s: the candidacy has ended", self.name)

    @contextlib.contextmanager
    def _running(self, terms: int | None) -> Iterator[Campaign]:
        """A campaign that `stop` and `Laneway.close` end. Raises UsageError."""
        if self._make is None:
            raise UsageError(
                f"election {self.name}: expected a career to run; name its class:"
                f" app.election({self.name!r}, Career)"
            )
        if terms is not None:
            arguments.whole("election", "terms", terms)
        campaign = Campaign(
            self.name, self._make, self.times, self._store(), self._runtime.threads, terms
        )
        with self._lock:
            if self._campaign is not None and self._pid == os.getpid():
                raise UsageError(f"election {self.name}: it runs in this process already")
            self._campaign, self._pid = campaign, os.getpid()
        try:
            with self._runtime.workers.running(campaign):
                yield campaign
        finally:
            campaign.ended.set()  # even if it never began
            with self._lock:
                self._campaign = None

    # From any process

    def state(self) -> ElectionState:
        """Return the election's state, with the term's holder. Raises EngineUnavailable."""
        store = self._store()
        try:
            return store.state()
        finally:
            store.close()

    def step_down(self, *, wait: Duration | None = None) -> ElectionState:
        """
        Ask the holder, in any process, to step down: its `term.ending` is set, and it has
        `hand_over_within` to hand over. Returns the state with the holder that was asked; its
        `state` is `"free"` if no process holds the term.

        `wait`: wait at most this long until that term has ended, and return the state at that time.
        A process that has stepped down soon becomes a candidate again, and wins if it is the only
        one. Raises EngineUnavailable.
        """
        seconds = arguments.seconds_or_none("step_down", "wait", wait)
        store = self._store()
        try:
            asked = state = store.ask()
            deadline = time.monotonic() + (seconds or 0.0)
            while (
                state.number == asked.number
                and state.state != "free"
                and time.monotonic() < deadline
            ):
                time.sleep(LOOK_AGAIN)
                state = store.state()
            return state
        finally:
            store.close()

    astate = async_variant(state)
    astep_down = async_variant(step_down)

    def _store(self) -> TermStore:
        if self._zookeeper is None:
            return EngineTerms(lambda: self._runtime.engine, self.name)
        from laneway.cluster.zookeeper import ZooKeeperTerms  # noqa: PLC0415  # an extra

        return ZooKeeperTerms(self._zookeeper, self._runtime.namespace, self.name, self.times.term)

    def __repr__(self) -> str:
        return f"<Election {self.name}>"


def _run(campaign: Campaign) -> int:
    """
    Run a campaign on an event loop in this thread; signals stop it if that is the main thread.
    """
    loop = asyncio.new_event_loop()
    try:
        return run_to_end(loop, loop.create_task(_until_signal(campaign)))
    finally:
        loop.run_until_complete(cancel_tasks())
        loop.close()


async def _until_signal(campaign: Campaign) -> int:
    with caught(STOP_SIGNALS, campaign.stop_by_signal):
        return await campaign.arun()


def check_name(call: str, name: object) -> str:
    """Check the name of an election. Raises UsageError."""
    text = arguments.name(call, "the name", name)
    if len(text) > MAX_NAME:
        raise UsageError(
            f"{call}: expected a name of at most {MAX_NAME} characters, got {len(text)}"
        )
    return text


def election_of(
    runtime: Runtime,
    name: str,
    career: Callable[[], Career] | None,
    *,
    term: Duration,
    hand_over_within: Duration,
    stalled_after: Duration | None,
    zookeeper: str | None,
    in_workers: bool,
) -> Election:
    """Check the arguments of `Laneway.election`. Raises UsageError."""
    name = check_name("election", name)
    if career is not None:
        check_career(f"election {name}", career)
    seconds = arguments.seconds("election", "term", term)
    if not LEAST_TERM <= seconds <= MOST_TERM:
        raise UsageError(
            f"election: expected term to be from {LEAST_TERM:g} s to {MOST_TERM:g} s, got"
            f" {term!r:.80}"
        )
    stalled = arguments.seconds_or_none("election", "stalled_after", stalled_after)
    if stalled == 0:
        raise UsageError("election: expected stalled_after to be above 0, got 0")
    times = TermTimes(
        seconds, arguments.seconds("election", "hand_over_within", hand_over_within), stalled
    )
    if zookeeper is not None:
        from laneway.cluster.zookeeper import check_address  # noqa: PLC0415

        check_address("election", zookeeper)
    election = Election(runtime, name, career, times, zookeeper)
    if in_workers:
        runtime.elections_in_workers.append(election)
    return election


class Elections(Noun):
    """The elections that the engine keeps: `app.elections`. `Laneway.election` runs one."""

    def list(self, *, limit: int = 1000, after: str | None = None) -> builtins.list[ElectionState]:
        """List the elections' states by name: at most `limit`, after the name `after`."""
        engine = self._runtime.engine
        names = engine.elections(
            limit=arguments.whole("elections.list", "limit", limit),
            after="" if after is None else arguments.name("elections.list", "after", after),
        )
        return [EngineTerms(lambda: engine, name).state() for name in names]

    alist = async_variant(list)
