"""
Tiers: service classes of topics, each with a share of the deliveries.

A namespace stores them in two layers, like policies: the programs' declarations, and the operator's
settings, which override them and can be reset. `TierLayers` is this record with its rules; every
engine stores it. `Tiers` are the tiers in force.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import msgspec

from laneway.errors import BadPolicy
from laneway.subscriptions import is_unicode

log = logging.getLogger("laneway.engine")

DEFAULT_TIERS: dict[str, float | str] = {"high": 6, "mid": 3, "low": 1}
USUAL = "mid"
"""The default tier if no program names one and a tier of this name exists."""

MAX_RESERVE = 0.9
"""The largest part of a worker's slots that one tier, and all tiers together, may reserve."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Tier(msgspec.Struct, frozen=True):
    """
    A service class of topics.

    - `share`: its part of the deliveries, relative to the other tiers' shares (above 0, at most
      1,000,000), or `"strict"`: it is served before all other tiers. Default 1.
    - `fair_by`: what its topics share evenly: the number of `"messages"` (default), or the workers'
      `"time"`.
    - `reserve`: the part of each worker's slots that only its messages may use, such as 0.2; at
      most 0.9. Default 0.
    """

    share: float | Literal["strict"] = 1
    fair_by: Literal["messages", "time"] = "messages"
    reserve: float = 0

    @staticmethod
    def of(value: Tier | float | str) -> Tier:
        """Read a `Tier`, a share, or `"strict"`. Raises BadPolicy."""
        tier = value if isinstance(value, Tier) else Tier(value)  # type: ignore[arg-type]  # checked in the next lines
        share_is_right = tier.share == "strict" or (
            isinstance(tier.share, (int, float))
            and not isinstance(tier.share, bool)
            and 0 < tier.share <= 1_000_000
        )
        if not share_is_right:
            raise BadPolicy(f'tier: expected a share above 0 or "strict", got {tier.share!r}')
        if tier.fair_by not in ("messages", "time"):
            raise BadPolicy(
                f'tier: expected fair_by to be "messages" or "time", got {tier.fair_by!r}'
            )
        reserve_is_right = (
            isinstance(tier.reserve, (int, float))
            and not isinstance(tier.reserve, bool)
            and 0 <= tier.reserve <= MAX_RESERVE
        )
        if not reserve_is_right:
            raise BadPolicy(
                f"tier: expected reserve to be a part of each worker's slots from 0 to"
                f" {MAX_RESERVE}, such as 0.2, got {tier.reserve!r}"
            )
        return tier


class Tiers(dict[str, Tier]):
    """
    The tiers in force by name, in the order of their declaration.

    `default`: the tier of topics whose policy names none.
    """

    def __init__(self, tiers: Mapping[str, Tier], default: str | None = None) -> None:
        super().__init__(tiers)
        self.default = default if default is not None else usual_default(tiers)

    @staticmethod
    def usual() -> Tiers:
        """Return the tiers of a namespace whose programs declare none."""
        return Tiers({name: Tier.of(share) for name, share in DEFAULT_TIERS.items()})


def usual_default(names: Iterable[str]) -> str:
    """Return the default tier if none is named: "mid" if it exists, else the last one."""
    found = list(names)
    return USUAL if USUAL in found else found[-1]


def check_tier_name(name: object) -> str:
    """Return the name if it is valid for a tier. Raises BadPolicy."""
    if (
        not isinstance(name, str)
        or not name
        or len(name) > 100
        or _CONTROL.search(name)
        or not is_unicode(name)
    ):
        raise BadPolicy(
            f"tier {name!r:.80}: expected a name of 1 to 100 characters without control characters"
        )
    return name


def check_tiers(tiers: Mapping[str, Any]) -> dict[str, Tier | None]:
    """
    Read tiers by name. None stays and removes the tier. Raises BadPolicy, which names the tier.
    """
    read: dict[str, Tier | None] = {}
    for name, value in tiers.items():
        check_tier_name(name)
        try:
            read[name] = Tier.of(value) if value is not None else None
        except BadPolicy as error:
            raise BadPolicy(f"tiers: {name}: {str(error).removeprefix('tier: ')}") from error
    return read


NamedBy = Callable[[str], str | None]
"""A function that returns a pattern whose policy names the tier, or None if none does."""


class TierLayers(msgspec.Struct, kw_only=True):
    """
    The stored tiers of a namespace.

    - `code`: the tiers that programs declared or changed.
    - `default`: the tier of topics whose policy names none.
    - `operator`: the tiers that an operator set; None for a removed tier.
    - `declared`, `declared_default`: the declarations of the last program that opened the store.
    - `version`: grows with every change.
    """

    code: dict[str, Tier]
    default: str
    operator: dict[str, Tier | None] = {}
    declared: dict[str, Tier] | None = None
    declared_default: str | None = None
    version: int = 1

    @staticmethod
    def new(tiers: Mapping[str, Tier] | None, default: str | None) -> TierLayers:
        """Create the tiers of a new namespace. Raises BadPolicy if `default` is none of them."""
        code = Tiers(tiers) if tiers else Tiers.usual()
        if default is not None and default not in code:
            raise BadPolicy(unknown_default(default, code))
        return TierLayers(
            code=dict(code),
            default=default or code.default,
            declared=dict(tiers) if tiers else None,
            declared_default=default,
        )

    @staticmethod
    def read(stored: bytes | str) -> TierLayers:
        """Read the stored JSON."""
        return msgspec.json.decode(stored, type=TierLayers)

    def json(self) -> bytes:
        """
        Return the JSON to store. Reading and writing it again does not change it: a share of 3 is
        3.0.
        """
        return msgspec.json.encode(TierLayers.read(msgspec.json.encode(self)))

    def in_force(self) -> Tiers:
        """Return the tiers in force: the operator's layer overrides the code's."""
        both = {**self.code, **self.operator}
        return Tiers({name: tier for name, tier in both.items() if tier is not None}, self.default)

    def declare(
        self, tiers: Mapping[str, Tier] | None, default: str | None, named_by: NamedBy
    ) -> TierLayers:
        """
        Return the layers after a program opened the store with these tiers.

        A declaration that differs from the last one replaces the code's layer. The same declaration
        changes nothing, so later changes stay. A tier that is no longer declared stays while a
        policy names it. Raises BadPolicy if `default` is none of the tiers.
        """
        if tiers is None and default is None:
            return self
        same_tiers = tiers is None or (
            self.declared is not None and list(tiers.items()) == list(self.declared.items())
        )
        if same_tiers and default == self.declared_default:
            return self
        after = msgspec.structs.replace(
            self, version=self._next_version(), declared_default=default
        )
        if tiers is not None and not same_tiers:
            after.declared, after.code = dict(tiers), dict(tiers)
            for name, tier in self.in_force().items():
                if name not in tiers and name not in self.operator and named_by(name) is not None:
                    log.warning(
                        'tier "%s" is no longer declared and stays, because policy %s names it',
                        name,
                        named_by(name),
                    )
                    after.code[name] = tier
        found = after.in_force()
        if default is not None and default not in found:
            raise BadPolicy(unknown_default(default, found))
        if default is not None:
            after.default = default
        elif tiers is not None and (self.declared_default is not None or not same_tiers):
            stated = usual_default(tiers)
            after.default = stated if stated in found else usual_default(found)
        return after

    def change(
        self, layer: str, changes: Mapping[str, Tier | None], named_by: NamedBy
    ) -> TierLayers:
        """
        Return the layers after tiers of one layer were added, changed, or removed (None).

        Raises BadPolicy if a tier would be removed that is the default or that a policy names.
        """
        after = msgspec.structs.replace(self, code=dict(self.code), operator=dict(self.operator))
        for name, tier in changes.items():
            if tier is not None:
                (after.operator if layer == "operator" else after.code)[name] = tier
            elif layer != "operator":
                after.code.pop(name, None)
            elif name in self.code:
                after.operator[name] = None
            else:
                after.operator.pop(name, None)
        return self._changed(after, named_by)

    def reset(self, name: str | None, named_by: NamedBy) -> TierLayers:
        """Return the layers without the operator's setting of one tier (None: of all)."""
        kept = {
            each: tier for each, tier in self.operator.items() if name is not None and each != name
        }
        return self._changed(msgspec.structs.replace(self, operator=kept), named_by)

    def _changed(self, after: TierLayers, named_by: NamedBy) -> TierLayers:
        if after == self:
            return self
        left = after.in_force()
        for name in self.in_force():
            if name in left:
                continue
            if name == self.default:
                raise BadPolicy(
                    f'tier "{name}" cannot be removed: it is the default, that of topics whose'
                    " policy names no tier"
                )
            pattern = named_by(name)
            if pattern is not None:
                raise BadPolicy(
                    f'tier "{name}" cannot be removed: policy {pattern} names it; change that'
                    " policy first"
                )
        after.version = self._next_version()
        return after

    def _next_version(self) -> int:
        """Return a version above those of a namespace whose server lost its data."""
        return max(self.version + 1, int(time.time()))


def moves_lanes(before: Tiers, after: Tiers) -> bool:
    """Return whether lanes may have to move to another tier."""
    return before.default != after.default or any(name not in after for name in before)


def unknown_default(default: str, tiers: Iterable[str]) -> str:
    """Return the text of the error about a default tier that does not exist."""
    return f'default_tier: there is no tier "{default}"; available: {", ".join(tiers)}'


def share_text(tiers: Mapping[str, Tier], name: str) -> str:
    """Describe a tier's share for people: "strict", or its part of the sum."""
    tier = tiers.get(name)
    if tier is None:
        return "this tier no longer exists"
    if tier.share == "strict":
        return "strict: before all others"
    total = sum(float(each.share) for each in tiers.values() if each.share != "strict")
    return f"share {tier.share:g} of {total:g}"
