"""
The policies and gates that a program's code declares before it opens the store.

They belong to the program and its version. A newer version replaces its program's set as a whole;
an older one changes nothing. Declaring a set that is already stored costs one comparison of its
digest. Several programs may declare the same value of a field, but not different ones. What a
program sets at run time belongs to no program, overrides what is declared, and stays until it is
reset.

A process that replaces a set claims the program's record first. Other processes wait, or continue
where it stopped.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from laneway import versions
from laneway.engines.base import FullEngine
from laneway.errors import BadPolicy, EngineUnavailable, UsageError
from laneway.policy import PROGRAM, Gate, is_pattern, sources
from laneway.units import SECOND

Policies = Mapping[str, Mapping[str, Any]]
Change = tuple[str, dict[str, Any]]

log = logging.getLogger("laneway")

PAGE = 1000
CLAIM_US = 30 * SECOND
"""How long a claim lasts that is not renewed: its process has probably ended."""

DECLARATIONS = 3
"""How often a set is declared again while connections break during a call."""

LOOK_AGAIN = 0.02
"""Seconds between two checks of a process that waits for another process of its program."""

_NAME = re.compile(r"[\w.@/+-]{1,100}")


class Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    """
    What the store keeps of a program. `claimed_until`: when the claim of `claim`, which replaces
    the set, ends unless renewed.
    """

    version: str | None = None
    digest: str = ""
    gates: dict[str, Gate] = {}
    topics: int = 0  # exact ones that it declares
    declared_us: int = 0
    claim: str = ""
    claimed_until: int = 0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Record).decode


def check_name(name: str) -> str:
    """The name of a program. Raises UsageError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(
            f"program: expected a name of 1 to 100 letters, digits and ._-@/+, got {name!r:.60}"
        )
    return name


def calling_module() -> str:
    """
    The default name of a program: the module outside of this package that creates the application.
    """
    frame = sys._getframe(1)  # noqa: SLF001  # inspect.stack() reads every file of the stack
    while (
        frame.f_back is not None
        and str(frame.f_globals.get("__name__")).partition(".")[0] == "laneway"
    ):
        frame = frame.f_back
    name = str(frame.f_globals.get("__name__", ""))
    if name == "__main__":
        spec = frame.f_globals.get("__spec__")
        name = (
            spec.name.removesuffix(".__main__")
            if spec is not None
            else Path(str(frame.f_globals.get("__file__", ""))).stem
        )
    try:
        return check_name(name)
    except UsageError:
        return "default"


def records(engine: FullEngine) -> dict[str, Record]:
    """The programs that have declared something, by name."""
    return {name: _decode(stored) for name, stored in sorted(engine.programs().items())}


def declare(
    engine: FullEngine,
    name: str,
    version: str | None,
    policies: Policies,
    gates: Mapping[str, Gate],
) -> None:
    """
    Make this the program's set, unless a newer version of the program has declared one.

    A program that has no version and declares nothing changes nothing: it may be a tool that uses
    the same name. If a connection breaks during a call, the set is declared again. Raises
    BadPolicy, TopicInUse.
    """
    if version is None and not policies and not gates:
        return
    wanted = {
        pattern: set_
        for pattern, fields in policies.items()
        if (set_ := {k: v for k, v in fields.items() if v is not None})
    }
    mine = Record(version=version, digest=_digest(wanted, gates), claim=secrets.token_hex(8))
    for repetitions in reversed(range(DECLARATIONS)):
        try:
            _declare(engine, name, mine, wanted, gates)
        except EngineUnavailable as error:
            if error.applied is False or not repetitions:
                raise
            log.warning("program %s: its policies are declared again: %s", name, error)
        else:
            return


def _declare(
    engine: FullEngine, name: str, mine: Record, wanted: Policies, gates: Mapping[str, Gate]
) -> None:
    version, digest = mine.version, mine.digest
    while True:
        stored = engine.programs().get(name)
        before = _decode(stored) if stored is not None else Record()
        if not before.claim and before.digest == digest and before.version == version:
            return
        if stored is None and not wanted and not gates:
            return
        if versions.is_older(version, before.version):
            log.warning(
                "program %s %s: version %s has declared its policies already; what this older"
                " version declares is not used",
                name,
                version,
                before.version,
            )
            return
        now = engine.overview().now_us
        if before.claim not in ("", mine.claim) and before.claimed_until > now:
            time.sleep(LOOK_AGAIN)
            continue
        claim = msgspec.structs.replace(
            before,
            version=version,
            digest="",
            claim=mine.claim,
            claimed_until=now + CLAIM_US,
        )
        if engine.program_swap(name, stored, _encode(claim)):
            _Replacement(engine, name, claim).run(before, wanted, gates, digest)
            return


def _digest(policies: Policies, gates: Mapping[str, Gate]) -> str:
    return hashlib.blake2b(
        msgspec.json.encode([policies, gates], order="deterministic"), digest_size=16
    ).hexdigest()


class _Replacement:
    """The replacement of a program's set by another."""

    def __init__(self, engine: FullEngine, name: str, claim: Record) -> None:
        self._engine = engine
        self._name = name
        self._claim = claim
        self._layer = PROGRAM + name

    def run(
        self, before: Record, policies: Policies, gates: Mapping[str, Gate], digest: str
    ) -> None:
        topics = {name: fields for name, fields in policies.items() if not is_pattern(name)}
        others = self._gates_of_others()
        try:
            self._refuse_gates(gates, others)
            for gate, limits in gates.items():
                if before.gates.get(gate) != limits:
                    self._engine.gate_set(gate, limits, layer="code")
            changes = self._of_patterns(
                {name: fields for name, fields in policies.items() if is_pattern(name)}
            )
            if changes:
                self._engine.policy_set_many(self._layer, changes)
            self._write_topics(topics, has_some=before.topics > 0 or bool(before.claim))
            for gate in before.gates.keys() - gates.keys() - others.keys():
                # Policies may still name the gate: without limits it is always open.
                self._engine.gate_set(gate, Gate(), layer="code")
        except BaseException:
            # The next process that opens the store does all of it again.
            self._end(
                msgspec.structs.replace(before, digest="", topics=max(before.topics, len(topics)))
            )
            raise
        declared = self._engine.overview().now_us
        self._end(
            Record(
                version=self._claim.version,
                digest=digest,
                gates=dict(gates),
                topics=len(topics),
                declared_us=declared,
            )
        )

    def _end(self, record: Record) -> None:
        self._engine.program_swap(
            self._name,
            _encode(self._claim),
            _encode(msgspec.structs.replace(record, claim="", claimed_until=0)),
        )

    def _renew(self) -> None:
        """
        Raises UsageError if another process has taken over because this one was blocked for too
        long.
        """
        now = self._engine.overview().now_us
        if self._claim.claimed_until - now > CLAIM_US // 2:
            return
        renewed = msgspec.structs.replace(self._claim, claimed_until=now + CLAIM_US)
        if not self._engine.program_swap(self._name, _encode(self._claim), _encode(renewed)):
            raise UsageError(
                f"program {self._name}: another process has declared its policies meanwhile; start"
                " this one again"
            )
        self._claim = renewed

    # Gates

    def _gates_of_others(self) -> dict[str, tuple[str, Gate]]:
        return {
            gate: (name, limits)
            for name, each in records(self._engine).items()
            if name != self._name
            for gate, limits in each.gates.items()
        }

    def _refuse_gates(
        self, gates: Mapping[str, Gate], others: Mapping[str, tuple[str, Gate]]
    ) -> None:
        for gate, limits in gates.items():
            if gate in others and others[gate][1] != limits:
                raise BadPolicy(
                    f'gate {gate}: the program "{others[gate][0]}" declares other limits for it;'
                    " let one of them declare it, or both the same"
                )

    # Policies

    def _of_patterns(self, wanted: Policies) -> list[Change]:
        policy_table = self._engine.policies()
        there = {
            pattern: fields
            for layer, pattern, fields in policy_table.source_rows()
            if layer == self._layer
        }
        names = [*wanted, *(pattern for pattern in there if pattern not in wanted)]
        return [
            (name, _difference(there.get(name, {}), wanted.get(name, {})))
            for name in names
            if there.get(name, {}) != wanted.get(name, {})
        ]

    def _write_topics(self, wanted: Policies, *, has_some: bool) -> None:
        seen: set[str] = set()
        batch: list[Change] = []
        for topic, there in self._topics() if has_some else ():
            seen.add(topic)
            if there != wanted.get(topic, {}):
                batch = self._write((topic, _difference(there, wanted.get(topic, {}))), batch)
        for topic, fields in wanted.items():
            if topic not in seen:
                batch = self._write((topic, dict(fields)), batch)
        if batch:
            self._engine.policy_set_many(self._layer, batch)

    def _write(self, change: Change, batch: list[Change]) -> list[Change]:
        batch.append(change)
        if len(batch) < PAGE:
            return batch
        self._renew()
        self._engine.policy_set_many(self._layer, batch)
        return []

    def _topics(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The topics whose policies the program declares, with the fields."""
        after: str | None = ""
        while after is not None:
            page, after = self._engine.policy_own_list(after, PAGE)
            for topic, layers in page:
                there = sources(layers).get(self._layer)
                if there is not None:
                    yield topic, there


def _difference(there: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The fields to set so that this becomes that."""
    return {
        **{field: None for field in there if field not in wanted},
        **{field: value for field, value in wanted.items() if there.get(field) != value},
    }
