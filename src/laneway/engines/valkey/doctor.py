"""
The doctor's checks: whether the server can be used, and whether its keys agree. Keys are checked
page by page, each page at one moment.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from laneway.engines.base import Check, DoctorStep
from laneway.engines.shared.doctor import DISAGREEMENTS, disagreement, finding, unhandled
from laneway.engines.valkey import record_formats, server_check
from laneway.engines.valkey.connection import Connections

if TYPE_CHECKING:
    from laneway.engines.valkey.namespace import Namespace

PAGE = 50
"""Entries that one call checks, about, see `scripts/check.lua`."""

_FOUND = ("counts", "order", "messages", "leases")
_HELD = ("waiting", "bytes", "leased", "unhandled")


def check(space: Namespace, *, repair: bool) -> list[Check]:
    """Check all shards; with `repair`, correct what does not agree."""
    found: Counter[str] = Counter()
    for shard in range(space.shards):
        found += _check_shard(space, shard, repair=repair)
    return _checks(space, found, repair=repair)


def check_steps(space: Namespace, pause: Callable[[float], object]) -> Iterator[DoctorStep]:
    """Check all shards page by page, and pause after each page as long as it took."""
    shards = range(space.shards)
    hashes = [("HLEN", name) for name in ("lanes", "m", "l")]
    total = sum(sum(map(int, space.read_many(shard, hashes))) for shard in shards)
    found: Counter[str] = Counter()
    done = 0
    for shard in shards:
        began = time.monotonic()
        pages = _pages(space, shard, found, repair=False)
        while next(pages, None) is not None:
            done = min(done + PAGE, total)
            yield DoctorStep(done, total)
            if pause(time.monotonic() - began):
                return
            began = time.monotonic()
    yield DoctorStep(total, total, _checks(space, found, repair=False))


def _checks(space: Namespace, found: Counter[str], *, repair: bool) -> list[Check]:
    checks = [*_used_server(space), _policies(space, repair=repair)]
    return [
        *checks,
        *(disagreement(name, found[name], repair=repair) for name in DISAGREEMENTS),
        unhandled(found["unhandled"]),
    ]


def check_server(url: str) -> list[Check]:
    """Check a server and the durabilities that it can keep. Creates nothing on it."""
    connections = Connections(url, durability="memory", checks=False)
    try:
        facts = server_check.facts(connections)
    finally:
        connections.close()
    unfit = server_check.problems(facts, connections.address, "memory")
    if unfit:
        return [_unfit("server", facts, problem) for problem in unfit]
    checks = [Check("server", ok=True, detail=f"{facts.name}, fit, replicas: {facts.replicas}")]
    for durability in ("fsync", "replicated"):
        cannot = server_check.problems(facts, connections.address, durability)
        slow = durability == "fsync" and facts.fsync == "everysec"
        if cannot:
            what, _, advice = cannot[0].removeprefix(f'durability "{durability}" ').partition("; ")
            checks.append(
                Check(
                    f'durability "{durability}"',
                    ok=True,
                    detail=f"not on this server: {what}",
                    advice=advice,
                    available=False,
                )
            )
            continue
        detail = "each call may wait a second; appendfsync always is quicker" if slow else "fit"
        checks.append(Check(f'durability "{durability}"', ok=True, detail=detail))
    return checks


def _unfit(name: str, facts: server_check.Facts, problem: str) -> Check:
    what, _, advice = problem.partition("; ")
    return Check(name, ok=False, detail=f"{facts.name}: {what}", advice=advice)


def _used_server(space: Namespace) -> list[Check]:
    """Check the server of a namespace for the durability that is in use."""
    facts = server_check.facts(space.server)
    problems = server_check.problems(facts, space.server.address, space.server.durability)
    if problems:
        return [_unfit("server", facts, problem) for problem in problems]
    kept = (
        f"append-only file, fsync {facts.fsync or 'unknown'}"
        if facts.appends
        else "keeps only its last dump, if any, over a restart"
    )
    shards = f"{space.shards} shard{'s' if space.shards > 1 else ''}"
    return [
        Check(
            "server",
            ok=True,
            detail=(
                f"{facts.name}, {facts.replicas} replicas, {kept}; {shards}, durability"
                f" {space.server.durability}"
            ),
        )
    ]


def _check_shard(space: Namespace, shard: int, *, repair: bool) -> Counter[str]:
    found: Counter[str] = Counter()
    for _ in _pages(space, shard, found, repair=repair):
        pass
    return found


def _pages(space: Namespace, shard: int, total: Counter[str], *, repair: bool) -> Iterator[bool]:
    """Check a shard page by page, and add what was found to the total."""
    found: Counter[str] = Counter()
    before = space.read(shard, "GET", "shard")
    held: Counter[str] = Counter()
    for what in ("lanes", "messages", "leases"):
        cursor: bytes | int = 0
        while True:
            cursor, *counts = space.run("check", shard, 0, what, cursor, int(repair))
            found.update(dict(zip(_FOUND, counts, strict=False)))
            held.update(dict(zip(_HELD, counts[len(_FOUND) :], strict=True)))
            yield True
            if int(cursor) == 0:
                break
    total.update(found)
    if repair and found.total():  # again for the totals, now that the rest is right
        yield from _pages(space, shard, total, repair=False)
        return
    total["unhandled"] += held["unhandled"]
    total["totals"] += _totals(space, shard, before, held, repair=repair)


def _totals(
    space: Namespace, shard: int, before: bytes, held: Counter[str], *, repair: bool
) -> int:
    """
    How many totals are wrong; 0 if something has changed meanwhile, because they cannot be
    compared.
    """
    counters = record_formats.read_counters(before)
    dead, lanes, names = space.read_many(
        shard, [("ZCARD", "dead"), ("HLEN", "lanes"), ("ZCARD", "names")]
    )
    if space.read(shard, "GET", "shard") != before:
        return 0
    right = {
        **{name: held[name] for name in ("waiting", "bytes", "leased")},
        "dead": dead,
        "lanes": lanes,
    }
    wrong = sum(bool(getattr(counters, name) != value) for name, value in right.items()) + int(
        names != lanes
    )
    if wrong and repair:
        space.run("totals", shard, 0, before, held["waiting"], held["bytes"], held["leased"])
    return wrong


def _policies(space: Namespace, *, repair: bool) -> Check:
    """Whether all shards have the current policies."""
    space.reload()
    policy_table = space.routes
    right = record_formats.resolved_policies(policy_table.policies).records(space.shards)
    wrong = 0
    for shard in range(space.shards):
        stored = dict(space.scan(shard, "HSCAN", "resolved"))
        stored.pop(b"", None)
        if (
            stored != right
            or record_formats.read_counters(space.read(shard, "GET", "shard")).version
            != policy_table.version
        ):
            wrong += 1
            if repair:
                space.write_all_policies(
                    shard, record_formats.read_counters(space.read(shard, "GET", "shard")).version
                )
    return finding(
        "policies", wrong, "shards that do not know the policies as they are", repair=repair
    )
