"""
Tiers: service classes of topics, each with a share of the deliveries.

A namespace keeps them in two layers, as it keeps policies: what programs say, and what an operator
set, which precedes it and can be reset. `TierLayers` is that record, and the rules of how it
changes; every engine stores it and calls these functions. `Tiers` is what is in force.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from laneway.errors import BadPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

log = logging.getLogger("laneway.engine")

DEFAULT_TIERS: dict[str, float | str] = {"high": 6, "mid": 3, "low": 1}
USUAL = "mid"
"""The default tier, where no program states one and there is a tier of that name."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Tier(msgspec.Struct, frozen=True):
    """
    A service class of topics.

    `share`: its part of the deliveries against the other tiers' shares, or `"strict"`: served
    before all others. `fair_by`: `"messages"`, or `"time"`: topics share the workers' time instead
    of the number of messages.
    """

    share: float | Literal["strict"] = 1
    fair_by: Literal["messages", "time"] = "messages"

    @staticmethod
    def of(value: Tier | float | str) -> Tier:
        """Read a tier as the application writes it: a `Tier`, a share, or `"strict"`."""
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
        return tier


class Tiers(dict[str, Tier]):
    """
    The tiers in force, in the order of their declaration; `default`: that of topics whose policy
    names none.
    """

    def __init__(self, tiers: Mapping[str, Tier], default: str | None = None) -> None:
        super().__init__(tiers)
        self.default = default if default is not None else usual_default(tiers)

    @staticmethod
    def usual() -> Tiers:
        """Those of a namespace for which nobody declared any."""
        return Tiers({name: Tier.of(share) for name, share in DEFAULT_TIERS.items()})


def usual_default(names: Iterable[str]) -> str:
    """The default tier where none is stated: the one called "mid", else the last declared."""
    found = list(names)
    return USUAL if USUAL in found else found[-1]


def check_tier_name(name: object) -> str:
    """Return the name if a tier can have it; raises BadPolicy."""
    if not isinstance(name, str) or not name or len(name) > 100 or _CONTROL.search(name):
        raise BadPolicy(
            f"tier {name!r:.80}: expected a name of 1 to 100 characters without control characters"
        )
    return name


def check_tiers(tiers: Mapping[str, Any]) -> dict[str, Tier | None]:
    """
    Read tiers as the application writes them; None stays: no such tier. Raises BadPolicy, which
    names the tier.
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
"""Says which policy names a tier; None: no policy does."""


class TierLayers(msgspec.Struct, kw_only=True):
    """
    What a namespace stores of its tiers.

    `code`: the tiers as programs say; `default`: the tier of topics whose policy names none;
    `operator`: what an operator set, None: no such tier; `declared`, `declared_default`: what the
    last program declared when it opened the store. `version` grows with every change.
    """

    code: dict[str, Tier]
    default: str
    operator: dict[str, Tier | None] = {}
    declared: dict[str, Tier] | None = None
    declared_default: str | None = None
    version: int = 1

    @staticmethod
    def new(tiers: Mapping[str, Tier] | None, default: str | None) -> TierLayers:
        """Of a namespace that is made. Raises BadPolicy where the default is none of the tiers."""
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
        """From JSON, also as namespaces had it before there were layers: a list of (name, tier)."""
        found = msgspec.json.decode(stored)
        if isinstance(found, list):
            code = {name: msgspec.convert(value, Tier) for name, value in found}
            return TierLayers(code=code, default=usual_default(code), declared=code)
        return msgspec.convert(found, TierLayers)

    def json(self) -> bytes:
        """As it is stored."""
        return msgspec.json.encode(self)

    def in_force(self) -> Tiers:
        """The tiers that hold: an operator's setting precedes the code's."""
        both = {**self.code, **self.operator}
        return Tiers({name: tier for name, tier in both.items() if tier is not None}, self.default)

    def declare(
        self, tiers: Mapping[str, Tier] | None, default: str | None, named_by: NamedBy
    ) -> TierLayers:
        """
        A program opened the store with these tiers: the last to declare other ones sets the code's
        layer.

        The same declaration as before changes nothing, so that changes made since then stay. A tier
        that goes missing is kept as long as a policy names it.
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
                        'tier "%s" is not declared any more and stays, because policy %s names it',
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
        Add and change tiers of a layer; None removes one. Raises BadPolicy where one that is used
        would go.
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
        """Remove what the operator set, for one tier or for all: the code's layer holds again."""
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
        """Larger than any that a namespace lost with its server has had."""
        return max(self.version + 1, int(time.time()))


def moves_lanes(before: Tiers, after: Tiers) -> bool:
    """Whether lanes may stand in a tier that is no longer theirs."""
    return before.default != after.default or any(name not in after for name in before)


def unknown_default(default: str, tiers: Iterable[str]) -> str:
    """Why a default tier is refused."""
    return f'default_tier: there is no tier "{default}"; there are: {", ".join(tiers)}'


def share_text(tiers: Mapping[str, Tier], name: str) -> str:
    """What a tier has, for people: "strict", or its share among all."""
    tier = tiers.get(name)
    if tier is None:
        return "no such tier any more"
    if tier.share == "strict":
        return "strict: before all others"
    total = sum(float(each.share) for each in tiers.values() if each.share != "strict")
    return f"share {tier.share:g} of {total:g}"
