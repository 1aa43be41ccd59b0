"""
The grants of gates in a namespace with several shards: each shard has a part of a gate's limits,
and the parts move to the shards where lanes wait. Independent of the kind of server.

A gate has *places*: the number of shards that can use it at the same time, see `places`. A place
has at least one whole permit of the burst, and one slot of the concurrency. A shard without a place
is shut: its bucket is empty.

- If there is a place for each shard with demand, the limits are divided by demand.
- Otherwise shards take turns. A *turn* is a number of deliveries, after which the shard shuts
  itself. The next look gives the place to the shard that is first in order: start-time fair
  queueing of the shards, weighted by the lanes that wait there. Each grant has the virtual times at
  which the shard's last turn starts and finishes, so any process can continue the round.

For example, a gate of 10/s has a burst of 1.5, so one place. One lane waits on each of 64 shards,
and a turn is one delivery. Shard 17 delivers a message and is shut. Within 50 ms a process takes
back what its bucket has gained since, half a permit, and gives it to shard 3, with the whole rate.
Shard 3 delivers 50 ms later. Each shard has its turn every 6.4 s. A gate of 1000/s has a burst of
51, so 26 places: 26 of the 64 shards have 38.5/s and a burst of 1.96 each, for turns of 0.4 s.

Grants that shrink are written before others grow, and slots that are leased do not move; permits
that a shard gives up are what others get. So the sum of all grants never exceeds the gate's limits;
for a moment after a move it may be less. A process that ends in between loses the permits that it
has taken back.

A process looks every `FAST` seconds while places move, else every `EVERY` seconds. The first
process that looks moves the grants for all processes. It asks only about gates that lanes wait at:
the others have what they need.

What the partitions of a topic share is a gate, too. Each shard has a part of it by the number of
its partitions, without a grant, so an idle topic needs no record. Grants move these parts where
lanes wait, and end when nothing of the topic waits or is leased. For a concurrency that adapts, the
limit that the shards have found together is divided, see `adaptive`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from laneway.engines.sharded.splitting import pages
from laneway.engines.shared import adaptive, gates
from laneway.engines.shared.adaptive import Share
from laneway.policy import Gate
from laneway.topic_groups import TOPIC
from laneway.units import SECOND

EVERY = 1.0
"""Seconds between two looks at the demand, if the last ones moved nothing."""

FAST = 0.025
"""Seconds between two looks while grants move, if looks are quick."""

SLOWER = 0.05
"""The same while shards wait for places, and none moves."""

SLOWEST = 0.25
"""The same if looks take long."""

LOOK_SHARE = 0.1
"""The part of its processor time that a process spends on looks at most, up to `SLOWEST`."""

LONGEST = 0.05
"""
Seconds after which a look ends, because a lease waits for it. With thousands of gates that lanes
wait at, the others have their turn at the next looks: they are in random order.
"""

AT_ONCE = 20
"""Gates whose usage is read together."""

MOST_WAITED = 1000
"""Gates of one shard that a look asks about."""

UNUSED_AFTER = 0.5
"""Seconds after which a turn ends of which nothing is used: its lanes may wait for other gates."""

LONGER, SHORTER = 1.25, 0.945
"""
How the length of a turn adapts to the handlers: it grows by places that are found free, and shrinks
by those that are in use. It settles at four looks or five, so places are seldom free.
"""

ROUND, LONGEST_WAIT = 1.0, 0.5
"""
Under a rate a round of turns takes this many seconds, and a turn at most so many; or more, so that
little of the rate is lost between turns: at least four looks, and sixteen times what the burst does
not cover of the time until the next look.
"""

LONGEST_TURN = 1000
"""Most deliveries in a turn."""

CLOSE = 0.05
"""Rates that differ by less are not written again."""

RECOVERED = 0.001
"""Seconds of its rate that a topic may owe when its grants end."""

MOST_TURNS = 10_000
"""Gates of whose turns a process remembers the length."""


class Grant(msgspec.Struct, frozen=True):
    """
    A shard's part of a gate's limits; None: that one is not limited.

    Of a concurrency that adapts: `out_of`: the limit that was divided; `moves`: by how much the
    shard's own limit changes, so that it is that one. (A sum: what the shard has learned since it
    was read is not lost.)

    `start`, `finish`: virtual times of the shard's last turn. `left`: how many deliveries are left
    of it; None: no turn, it has the grant until it is moved. `permits`: how many the shard gets
    beside its own.
    """

    rate: float | None
    burst: float | None
    concurrency: int | None
    out_of: int | None = None
    moves: int = 0
    start: float = 0.0
    finish: float = 0.0
    left: int | None = None
    permits: float = 0.0

    @property
    def gate(self) -> Gate:
        """The limits, as an engine stores them."""
        return Gate(
            self.rate,
            self.burst,
            self.concurrency,
            out_of=self.out_of,
            start=self.start,
            finish=self.finish,
            left=self.left,
        )


class Answer(NamedTuple):
    """
    After a grant was written: `held`: the shard's slots, those of its leases too if that is more
    than it was granted. `gave_up`: the permits that it has no more; less than 0: what it owed.
    """

    held: int
    gave_up: float


class Usage(msgspec.Struct):
    """
    A gate on one shard: its leases, the lanes that wait at it, and the concurrency that was granted
    (None: no grant yet). A lane with several gates waits at all of them: if it were a demand of one
    only, grants of two gates could follow each other from shard to shard for ever.
    """

    leased: int
    waiting: int
    granted: int | None
    here: Gate | None = None
    """The grant, or a topic's part without a grant; None: no grant yet."""
    part: Grant | None = None
    """Of a topic's gate: what the shard has without a grant; None: it has no partition there."""
    share: Share | None = None
    """Of a topic whose concurrency adapts, where it has partitions."""

    @property
    def demand(self) -> int:
        """What the shard could use: a part for each lane that waits; one if all are busy."""
        return self.waiting or min(self.leased, 1)

    @property
    def grant(self) -> Grant | None:
        """The limits that the shard has now; None: no grant yet."""
        here = self.here
        if here is None:
            return None
        return Grant(
            here.rate,
            here.burst,
            here.concurrency,
            here.out_of,
            start=here.start,
            finish=here.finish,
            left=here.left,
        )

    @property
    def start(self) -> float:
        """When the shard's last turn started."""
        return self.here.start if self.here is not None else 0.0

    @property
    def finish(self) -> float:
        """When it finishes."""
        return self.here.finish if self.here is not None else 0.0


class Gates(Protocol):
    """How an engine stores gates on its shards."""

    shards: int

    def has_gates(self) -> bool:
        """Whether the namespace has a gate, or a topic group with settings."""

    def waited_gates(self) -> Collection[str]:
        """
        The gates that lanes wait at, and those of topics that have grants; of each shard at most
        `MOST_WAITED` of either, drawn at random.
        """

    def claim_grants(self, seconds: float) -> bool:
        """Claim the looks for so many seconds; False: another process has claimed them."""

    def hold_grants(self, seconds: float) -> None:
        """The claim of this process lasts so many seconds from now."""

    def gate_usages(self, gates: Sequence[str]) -> list[tuple[Gate, list[Usage]] | None]:
        """
        For each gate its limits and its usage on each shard; None: not every shard that needs the
        gate has it yet.
        """

    def grant_on(self, gate: str, grants: Mapping[int, Grant], now_us: int | None) -> list[Answer]:
        """Set the grants of some shards; an answer for each."""

    def end_grant(self, gate: str, shard: int, now_us: int | None) -> None:
        """End a shard's grant of a topic's gate."""


class Turns(msgspec.Struct):
    """What a process remembers of a gate's turns: their length, and when each was last used."""

    length: float = 1.0
    is_short: bool = False
    """Whether there are fewer places than shards with demand."""
    used: dict[int, tuple[float, int, float]] = {}
    promised: dict[int, int] = {}
    """The concurrency that shards get when other shards' leases end."""
    owed: float = 0.0
    """Permits, less than 0, that shards without a place owed, and no other shard has taken over."""
    recovers: float = 0.0
    """When the rate of a topic that is idle has recovered."""

    def is_unused(self, shard: int, usage: Usage, here: Gate, now: float) -> bool:
        """Whether nothing of the shard's turn was used for long, although its limits admit it."""
        finish, left, since = self.used.get(shard, (0.0, 0, 0.0))
        is_full = here.concurrency is not None and usage.leased >= (usage.granted or 0)
        if (finish, left) != (here.finish, here.left) or is_full:
            self.used[shard] = here.finish, here.left or 0, now
            return False
        return now - since >= max(UNUSED_AFTER, 2 / here.rate if here.rate else 0.0)

    def adapt(self, free: float) -> None:
        """`free`: which part of the places was free at this look."""
        length = self.length * LONGER**free * SHORTER ** (1 - free)
        self.length = min(max(length, 1.0), LONGEST_TURN)


class Look(NamedTuple):
    """
    What the divisions of one look have in common. `luck`: a number for each shard that decides
    what is equal otherwise; the same for all gates, so that a shard whose lanes have several gates
    gets a slot of all of them at once. `is_due`: parts by demand are divided again, although each
    shard with demand has one. `every`: seconds until the next look.
    """

    now: float
    now_us: int | None
    luck: Sequence[float]
    is_due: bool
    every: float


class Grants:
    """Keeps the grants of one namespace where they are needed."""

    def __init__(self, gates: Gates, draw: Callable[[], float] = random.random) -> None:
        self._gates = gates
        self._next = {True: 0.0, False: 0.0}
        """When to look, by the machine's clock (True) and by that of a caller."""
        self._every = EVERY
        self._fast = FAST
        self._has_gates = False
        self._divided = 0.0
        self._luck: list[float] = []
        self._turns: dict[str, Turns] = {}
        self._grown: set[int] = set()
        self._random = random.Random(draw())

    @property
    def look_at(self) -> float:
        """When to look next (monotonic seconds)."""
        return self._next[True] if self._has_gates else float("inf")

    def take_grown(self) -> set[int]:
        """The shards whose grants have grown since the last call."""
        grown, self._grown = self._grown, set()
        return grown

    def begin(self, gate: str, limits: Gate, before: Gate | None, now_us: int | None) -> None:
        """
        Divide a new or changed gate into equal parts, beside what is leased by now. `before`: the
        limits that were in force; None: it is new.
        """
        shards = self._gates.shards
        # Each shard keeps what is leased there and leases nothing more until all have answered.
        shut = shut_grant(Usage(0, 0, None))
        answers = self._gates.grant_on(gate, dict.fromkeys(range(shards), shut), now_us)
        usage = [Usage(each.held, 0, 0, shut.gate) for each in answers]
        permits = sum(each.gave_up for each in answers)
        if before is None or before.rate is None:
            permits = limits.effective_burst
        luck = [self._random.random() for _ in range(shards)]
        users = sorted(range(shards), key=luck.__getitem__)[: places(limits, shards)]
        for shard in users:
            usage[shard].waiting = 1
        self._write(gate, limits, usage, by_demand(limits, usage, users, luck), permits, now_us)

    def lower(self, topics: Collection[str], now_us: int | None) -> None:
        """Divide lowered limits of topics: each shard has its part by the policy alone."""
        now = time.monotonic() if now_us is None else now_us / SECOND
        luck = [self._random.random() for _ in range(self._gates.shards)]
        look = Look(now, now_us, luck, is_due=True, every=self._fast)
        for page in pages([TOPIC + topic for topic in sorted(topics)], AT_ONCE):
            for gate, found in zip(page, self._gates.gate_usages(page), strict=True):
                if found is not None and is_lowered(*found):
                    self._renew(gate, *found, look)

    def renew(self, now_us: int | None = None) -> bool:
        """
        Move the grants, if it is time and no other process has just done it. Returns whether shards
        got more than before. A caller with a clock of its own (a test) is alone.
        """
        gates, is_real = self._gates, now_us is None
        now = time.monotonic() if now_us is None else now_us / SECOND
        if gates.shards == 1 or now < self._next[is_real] <= now + EVERY:
            return False
        self._has_gates = gates.has_gates()
        if not self._has_gates or (is_real and not gates.claim_grants(EVERY * 0.9)):
            self._every, self._next[is_real] = EVERY, now + EVERY
            return False
        began = time.thread_time()
        pauses = self._renew_all(sorted(gates.waited_gates()), now, now_us)
        took = time.thread_time() - began if is_real else 0.0
        fast = min(max(FAST, took / LOOK_SHARE), SLOWEST)
        self._fast += (fast - self._fast) / 8  # a single slow look does not count much
        most = min(pauses, default=EVERY)
        self._every = max(self._fast, min(self._every * 2, most, self._divided + EVERY - now))
        self._next[is_real] = now + self._every
        if is_real:
            self._next[is_real] = time.monotonic() + self._every
            gates.hold_grants(self._every * 0.9)
        return most == FAST

    def _renew_all(self, names: list[str], now: float, now_us: int | None) -> set[float]:
        """Returns for how long the gates can wait for the next look, each at most."""
        end, pauses = time.monotonic() + LONGEST, set()
        is_due = not self._divided <= now < self._divided + EVERY - FAST
        if is_due:
            self._luck = [self._random.random() for _ in range(self._gates.shards)]
            self._divided = now
        if len(self._turns) > MOST_TURNS:
            self._turns.clear()
        look = Look(now, now_us, self._luck, is_due, self._fast)
        self._random.shuffle(names)
        for page in pages(names, AT_ONCE):
            for name, found in zip(page, self._gates.gate_usages(page), strict=True):
                if found is not None:
                    pauses.add(self._renew(name, *found, look))
            if time.monotonic() > end:
                break
        return pauses

    def _renew(self, gate: str, limits: Gate, usage: list[Usage], look: Look) -> float:
        if not any(each.waiting for each in usage) and not is_lowered(limits, usage):
            if gate.startswith(TOPIC) and not any(each.leased for each in usage):
                self._end(gate, limits, usage, look)
            return EVERY
        if limits.least is not None:
            limit = limit_of_all(usage, look.luck[0])
            limits = msgspec.structs.replace(limits, concurrency=limit)
        turns = self._turns.setdefault(gate, Turns())
        wanted = divided(limits, usage, turns, look)
        pause = SLOWER if turns.is_short or turns.promised else EVERY
        if wanted is None:
            return pause
        if any(
            each.waiting and is_shut(each.here) and not is_shut(grant.gate)
            for each, grant in zip(usage, wanted, strict=True)
        ):
            pause = FAST
        turns.promised = self._write(gate, limits, usage, wanted, 0.0, look.now_us)
        return min(pause, SLOWER) if turns.promised else pause

    def _write(
        self,
        gate: str,
        limits: Gate,
        usage: Sequence[Usage],
        wanted: Sequence[Grant],
        permits: float,
        now_us: int | None,
    ) -> dict[int, int]:
        """
        Write the grants that change: those that shrink, then those that grow, by what the others
        gave up. `permits`: what there is beside that. Returns the concurrency that shards get when
        other shards' leases end.
        """
        promised: dict[int, int] = {}
        turns = self._turns.setdefault(gate, Turns())
        permits += turns.owed
        here = [
            shard
            for shard, each in enumerate(usage)
            if each.part is not None or not gate.startswith(TOPIC)
        ]
        shrunk = {
            shard: smaller
            for shard in here
            if (smaller := at_most(wanted[shard], usage[shard])) != usage[shard].grant
        }
        held = [max(each.granted or 0, each.leased) for each in usage]
        for shard, answer in self._grant(gate, shrunk, now_us).items():
            permits += answer.gave_up
            held[shard] = answer.held
        free = (limits.concurrency or 0) - sum(held)
        grown: dict[int, Grant] = {}
        for shard in here:
            grant, before = wanted[shard], shrunk.get(shard, usage[shard].grant)
            concurrency = grant.concurrency
            if concurrency is not None:
                # `free` is below 0 while old leases use more than a limit that was lowered.
                most = max(held[shard] + (free if limits.least is None else max(free, 0)), 0)
                if concurrency > most:
                    promised[shard], concurrency = concurrency, most
                free -= max(concurrency - held[shard], 0)
            grant = msgspec.structs.replace(
                grant, concurrency=concurrency, moves=0 if shard in shrunk else grant.moves
            )
            if grant == before:
                continue
            room = (grant.burst or 0.0) - ((before.burst or 0.0) if before is not None else 0.0)
            more = min(permits, max(room, 0.0)) if grant.rate is not None else 0.0
            permits -= more
            grown[shard] = msgspec.structs.replace(grant, permits=more)
        self._grant(gate, grown, now_us)
        self._grown |= grown.keys()
        turns.owed = min(permits, 0.0)
        return promised

    def _grant(
        self, gate: str, grants: Mapping[int, Grant], now_us: int | None
    ) -> dict[int, Answer]:
        answers = self._gates.grant_on(gate, grants, now_us) if grants else []
        return dict(zip(grants, answers, strict=True))

    def _end(self, gate: str, limits: Gate, usage: Sequence[Usage], look: Look) -> None:
        """
        End all grants of an idle topic, once its rate has recovered: until then its parts owe what
        the grants owed, in case that the topic comes back.
        """
        turns = self._turns.setdefault(gate, Turns())
        if look.now < turns.recovers:
            return
        here = [shard for shard, each in enumerate(usage) if each.part is not None]
        shut = {shard: shut_grant(usage[shard]) for shard in here}
        answers = self._grant(gate, shut, look.now_us)
        if any(answer.held for answer in answers.values()):
            return  # something was leased meanwhile; the next look divides the limits again
        if limits.rate is not None:
            permits = sum(answer.gave_up for answer in answers.values())
            wait = (limits.effective_burst - permits) / limits.rate
            if wait > RECOVERED:
                turns.recovers = look.now + wait
                parts = [each.part or shut_grant(each) for each in usage]
                had = [Usage(0, 0, 0, shut_grant(each).gate, each.part) for each in usage]
                self._write(gate, limits, had, parts, permits, look.now_us)
                return
        for shard in here:
            self._gates.end_grant(gate, shard, look.now_us)


def places(limits: Gate, shards: int) -> int:
    """
    On how many shards a gate can be used at the same time: each has a slot of the concurrency, and
    at least a whole permit of the burst. At least half of what the burst is above one permit stays:
    for the visits that are late, see `default_burst`.
    """
    most = shards
    if limits.rate is not None:
        most = min(most, gates.rate_places(limits))
    if limits.concurrency is not None:
        # With a rate, so that a place moves while the handlers of its last turn run.
        most = min(most, -(-limits.concurrency // (1 if limits.rate is None else 2)))
    return max(most, 1)


def divided(limits: Gate, usage: Sequence[Usage], turns: Turns, look: Look) -> list[Grant] | None:
    """The grants of all shards; None: they may stay as they are."""
    count = places(limits, len(usage))
    users = [shard for shard, each in enumerate(usage) if each.demand]
    if len(users) > count:
        users = [shard for shard in users if usage[shard].waiting]
    is_short = len(users) > count
    wanted: list[Grant] | None = None
    turns.is_short = is_short and limits.least is None
    if is_short and limits.least is None:
        wanted = by_turns(limits, usage, users, turns, look)
    elif is_short and look.is_due:
        wanted = one_each(limits, usage, users, look)
    elif not is_short and (look.is_due or not all(has_part(usage[shard].here) for shard in users)):
        wanted = by_demand(limits, usage, users, look.luck)
    elif turns.promised:
        has = [each.grant or shut_grant(each) for each in usage]
        return [
            msgspec.structs.replace(grant, concurrency=turns.promised.get(shard, grant.concurrency))
            for shard, grant in enumerate(has)
        ]
    if wanted is not None and limits.least is not None:
        wanted = [out_of(limits, each, grant) for each, grant in zip(usage, wanted, strict=True)]
    is_new = wanted and (is_lowered(limits, usage) or any(map(differs, wanted, usage)))
    return wanted if is_new else None


def is_lowered(limits: Gate, usage: Sequence[Usage]) -> bool:
    """Whether more is granted or leased than the concurrency, which does not adapt."""
    held = sum(max(each.granted or 0, each.leased) for each in usage)
    return limits.least is None and held > (limits.concurrency or held)


def by_demand(
    limits: Gate,
    usage: Sequence[Usage],
    users: Sequence[int],
    luck: Sequence[float],
    *,
    has_all: bool = False,
) -> list[Grant]:
    """
    The limits in proportion to the demand of these shards; there is a place for each. `has_all`:
    they get the slots of other shards' leases, too, when these end.
    """
    demand = [0] * len(usage)
    for shard in users:
        demand[shard] = usage[shard].demand
    total, wanted = max(sum(demand), 1), [shut_grant(each) for each in usage]
    others = [each.leased for shard, each in enumerate(usage) if not demand[shard]]
    leased = 0 if has_all else sum(others)
    starts = next_starts(usage)
    order = sorted(users, key=lambda shard: (starts[shard], luck[shard]))
    most, more = slots(limits.concurrency, demand, order, beside=leased)
    for shard in users:
        grant = grant_of(limits, demand[shard] / total, most[shard], len(users), usage[shard])
        if shard in more:
            finish = starts[shard] + 1 / demand[shard]
            grant = msgspec.structs.replace(grant, start=starts[shard], finish=finish)
        wanted[shard] = grant
    return wanted


def by_turns(
    limits: Gate, usage: Sequence[Usage], users: Sequence[int], turns: Turns, look: Look
) -> list[Grant]:
    """
    Places go from shard to shard: turns that have not ended continue, and free places go to the
    shards that are first in order.
    """
    count = places(limits, len(usage))
    each_has = limits.concurrency // count if limits.concurrency is not None else 0
    held: dict[int, int] = {}
    for shard in users:
        has, here = places_of(limits, usage[shard], count), usage[shard].here
        if (
            has
            and here is not None
            and sum(held.values()) + has <= count
            and not turns.is_unused(shard, usage[shard], here, look.now)
        ):
            held[shard] = has
    free = count - sum(held.values())
    if each_has:
        used = sum(
            max(each.granted or 0, each.leased) if shard in held else each.leased
            for shard, each in enumerate(usage)
        )
        free = max(0, min(free, (limits.concurrency or 0) - used))
    turns.adapt(free / count)
    length = turns.length
    if limits.rate is not None:
        lost = look.every - limits.effective_burst / limits.rate
        seconds = max(4 * look.every, 16 * lost, min(ROUND * count / len(users), LONGEST_WAIT))
        length = min(length, limits.rate / count * seconds)
    finish = next_starts(usage)
    starts: dict[int, float] = {}
    more: dict[int, int] = {}
    for _ in range(free):
        shard = min(users, key=lambda shard: (finish[shard], look.luck[shard]))
        starts[shard] = finish[shard]
        finish[shard] += max(1, int(length)) / usage[shard].waiting
        more[shard] = more.get(shard, 0) + 1
    wanted = []
    for shard, each in enumerate(usage):
        grant = each.grant
        if shard in starts:
            has = held.get(shard, 0) + more[shard]
            left = ((each.here and each.here.left) or 0) if shard in held else 0
            grant = Grant(
                limits.rate * has / count if limits.rate is not None else None,
                limits.effective_burst * has / count if limits.rate is not None else None,
                has * each_has if each_has else None,
                start=starts[shard],
                finish=finish[shard],
                left=left + more[shard] * max(1, int(length)),
            )
        elif shard not in held or grant is None:
            grant = shut_grant(each)
        elif each_has and limits.least is None:
            grant = msgspec.structs.replace(grant, concurrency=held[shard] * each_has)
        wanted.append(grant)
    return wanted


def one_each(limits: Gate, usage: Sequence[Usage], users: Sequence[int], look: Look) -> list[Grant]:
    """
    A concurrency that adapts stays for `EVERY` seconds with the shards that are first in order:
    what they learn of the destination needs windows of some length.
    """
    starts = next_starts(usage)
    first = sorted(users, key=lambda shard: (starts[shard], look.luck[shard]))
    first = first[: places(limits, len(usage))]
    wanted = by_demand(limits, usage, first, look.luck, has_all=True)
    for shard in first:
        finish = starts[shard] + 1
        wanted[shard] = msgspec.structs.replace(wanted[shard], start=starts[shard], finish=finish)
    return wanted


def next_starts(usage: Sequence[Usage]) -> list[float]:
    """
    When each shard's next turn starts: at the finish of its last, and not before the last turn of
    any shard started. So a shard that had no demand catches up with nothing.
    """
    begun = max(each.start for each in usage)
    return [max(each.finish, begun) for each in usage]


def places_of(limits: Gate, usage: Usage, count: int) -> int:
    """How many of these places a shard has whose turn has not ended."""
    here = usage.here
    if here is None or not here.left or is_shut(here):
        return 0
    if limits.rate is not None:
        return round((here.rate or 0.0) * count / limits.rate)
    return usage.granted or 0


def has_part(here: Gate | None) -> bool:
    """Whether a shard has a grant that is not for a turn."""
    return here is not None and here.left is None and here.concurrency != 0


def is_shut(here: Gate | None) -> bool:
    """Whether a shard has no place."""
    return here is None or here.left == 0 or here.concurrency == 0


def differs(wanted: Grant, usage: Usage) -> bool:
    """Whether a grant is to be written again."""
    has = usage.grant
    if has is None or wanted.rate is None or has.rate is None:
        return wanted != has
    is_close = abs(wanted.rate - has.rate) <= CLOSE * has.rate
    return not is_close or wanted != msgspec.structs.replace(
        has, rate=wanted.rate, burst=wanted.burst
    )


def out_of(limits: Gate, usage: Usage, grant: Grant) -> Grant:
    """A grant of a concurrency that adapts."""
    limit = limits.concurrency
    if usage.share is None or limit is None:
        return grant
    return msgspec.structs.replace(grant, out_of=limit, moves=limit - usage.share.limit)


def limit_of_all(usage: Sequence[Usage], luck: float) -> int:
    """What the shards take the topic's limit for."""
    return adaptive.limit_of_all([each.share for each in usage if each.share is not None], luck)


def topic_usage(
    part: Grant | None,
    here: Gate | None,
    limits: Gate | None,
    share: Share | None,
    leased: int,
    waiting: int,
) -> Usage:
    """
    A topic's gate on a shard with this part of it. `here`, `limits`: what it was granted, and what
    is in force; None: it has no record.
    """
    if part is None:
        return Usage(0, 0, 0)
    granted = (limits or part).concurrency
    return Usage(leased, waiting, granted, here or part.gate, part, share)


def no_share(limits: Gate, part: Grant | None) -> Share | None:
    """The share of a shard without a record of the topic's gate."""
    if part is None:
        return None
    return gates.share_of(limits, Gate(concurrency=part.concurrency), None, 0)


def at_most(grant: Grant, usage: Usage) -> Grant:
    """The grant, with no larger limits than the shard has; what it has, if that is not larger."""
    has = usage.grant
    if has is None:
        return shut_grant(usage)
    more = usage.granted is not None and (grant.concurrency or 0) < usage.granted
    if not more and not is_less(grant.rate, has.rate) and not is_less(grant.burst, has.burst):
        return has
    rate, burst = smaller(grant.rate, has.rate), smaller(grant.burst, has.burst)
    concurrency = grant.concurrency and gates.least(grant.concurrency, usage.granted)
    is_shut = rate is None and grant.rate is not None
    return msgspec.structs.replace(
        grant,
        rate=rate,
        burst=burst,
        concurrency=concurrency,
        left=0 if is_shut else grant.left,
    )


def is_less(one: float | None, other: float | None) -> bool:
    """Whether a shard with the first limit has less; None: it has nothing."""
    return other is not None and (one is None or one < other)


def smaller(one: float | None, other: float | None) -> float | None:
    """The smaller limit; None: nothing."""
    return None if one is None or other is None else min(one, other)


def shut_grant(usage: Usage) -> Grant:
    """The grant of a shard without a place: no permits, and no slots but those of its leases."""
    return Grant(None, None, 0, start=usage.start, finish=usage.finish, left=0)


def grant_of(limits: Gate, share: float, concurrency: int, users: int, usage: Usage) -> Grant:
    """The part of a shard, of `users` that have one: each has at least one permit of the burst."""
    rate, burst = limits.rate, None
    if rate is not None:
        rate, burst = rate * share, 1.0 + (limits.effective_burst - users) * share
    return Grant(
        rate,
        burst,
        concurrency if limits.concurrency is not None else None,
        start=usage.start,
        finish=usage.finish,
    )


def slots(
    concurrency: int | None, demand: Sequence[int], order: Sequence[int], *, beside: int = 0
) -> tuple[list[int], Sequence[int]]:
    """
    The concurrency of each shard: in proportion to its demand. What is left goes to the first in
    order, but first to shards without a slot; also answers to which. `beside`: slots that others
    use.
    """
    if concurrency is None:
        return [0] * len(demand), ()
    total, concurrency = max(sum(demand), 1), max(0, concurrency - beside)
    parts = [concurrency * each // total for each in demand]
    by_need = sorted(order, key=lambda n: parts[n] > 0)
    more = by_need[: concurrency - sum(parts)]
    for n in more:
        parts[n] += 1
    return parts, more
