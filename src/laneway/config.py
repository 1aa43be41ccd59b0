"""The choice of the engine's URL, and the checks of the arguments of `Laneway(…)`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from laneway import units
from laneway.engines.base import Durability, Settings
from laneway.errors import BadPolicy, UsageError
from laneway.policy import OnFull
from laneway.printable import meant_or_known, redacted
from laneway.tiers import Tier, check_tiers, unknown_default

DEFAULT_URL = "sqlite:///laneway.db"
DEV_URL = "sqlite:///laneway-dev.db"
"""The default of `laneway dev`."""

DURABILITIES = ("memory", "fsync", "replicated")
ON_FULL = ("refuse", "block", "drop_oldest")


class StoreChoice(msgspec.Struct, frozen=True):
    """
    The store, the setting that named it, and the settings that name another one: (setting, URL), in
    order of precedence.
    """

    url: str
    source: str
    passed_over: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"<StoreChoice {self}>"

    def __str__(self) -> str:
        text = f"{redacted(self.url)} ({self.source})"
        if self.passed_over:
            text += "; ignored: " + ", ".join(
                f"{redacted(url)} ({source})" for source, url in self.passed_over
            )
        return text


def default_url() -> str:
    """
    `$LANEWAY_URL`, else `[tool.laneway] url` in ./pyproject.toml, else `sqlite:///laneway.db`.
    """
    return os.environ.get("LANEWAY_URL") or _url_of_project(Path("pyproject.toml")) or DEFAULT_URL


def choose_store(option: str | None, argument: str | None) -> StoreChoice:
    """
    The store by precedence: the command line's option, the argument in the code, the environment,
    the project, the default. Raises UsageError.
    """
    named = [
        ("option --url", option),
        ("argument in the code", argument),
        ("environment LANEWAY_URL", os.environ.get("LANEWAY_URL") or None),
    ]
    chosen = next((url for _, url in named if url is not None), None)
    try:
        named.append(("pyproject.toml [tool.laneway] url", _url_of_project(Path("pyproject.toml"))))
    except UsageError:
        if chosen is None:  # with a chosen URL it is not needed
            raise
    named.append(("default", DEFAULT_URL))
    there = [(source, url) for source, url in named if url is not None]
    (source, url), *others = there
    return StoreChoice(url, source, tuple(other for other in others[:-1] if other[1] != url))


def hint_of_dev(url: str) -> str:
    """
    How to use the store of `laneway dev` in this folder, if the URL is that of the default file,
    which does not exist yet; else "".
    """
    own, dev = (Path(each.removeprefix("sqlite:///")) for each in (DEFAULT_URL, DEV_URL))
    if url != DEFAULT_URL or own.exists() or not dev.exists():
        return ""
    return (
        f"`laneway dev` keeps its messages in {dev}; export LANEWAY_URL={DEV_URL} to use that store"
    )


def check_namespace(namespace: str) -> str:
    """Return the namespace's name if it is valid. Raises UsageError."""
    if not isinstance(namespace, str) or not namespace or not namespace.isprintable():
        raise UsageError(f"namespace: expected a name, got {namespace!r}")
    return namespace


def _url_of_project(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="utf-8")
        import tomllib  # noqa: PLC0415  # only where there is such a file

        project = tomllib.loads(text)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # not UTF-8, or not TOML
        raise UsageError(
            f"{path}: the engine's URL cannot be read from it ({error}); set LANEWAY_URL or repair"
            " the file"
        ) from error
    url = project.get("tool", {}).get("laneway", {}).get("url")
    if url is not None and not isinstance(url, str):
        raise UsageError(
            f"{path}: expected [tool.laneway] url to be text, got {type(url).__name__}"
        )
    return url


def settings(
    *,
    namespace: str,
    tiers: Mapping[str, Tier | float | str] | None,
    durability: Durability | None,
    max_backlog: int | str | None,
    on_full: OnFull,
    create: bool,
    default_tier: str | None = None,
) -> Settings:
    """
    Check the arguments of `Laneway(…)`. Raises UsageError or BadPolicy, which name the option and
    the expected value.
    """
    check_namespace(namespace)
    if durability is not None and durability not in DURABILITIES:
        raise UsageError(
            f"durability: expected one of {', '.join(DURABILITIES)}, got {durability!r}"
        )
    if on_full not in ON_FULL:
        raise UsageError(f"on_full: expected one of {', '.join(ON_FULL)}, got {on_full!r}")
    count, size = _backlog(max_backlog)
    read = _tiers(tiers)
    return Settings(
        namespace=namespace,
        tiers=read,
        default_tier=_default_tier(default_tier, read),
        durability=durability,
        max_backlog=count,
        max_backlog_bytes=size,
        on_full=on_full,
        create=create,
    )


def _tiers(tiers: Mapping[str, Tier | float | str] | None) -> dict[str, Tier] | None:
    if tiers is None:
        return None
    if not isinstance(tiers, Mapping):
        raise UsageError(
            f'Laneway: expected tiers to be a dict like {{"high": 6, "low": 1}}, got {tiers!r}'
        )
    if not tiers:
        raise BadPolicy("tiers: expected at least one tier with its share")
    read = check_tiers(tiers)
    missing = [name for name, tier in read.items() if tier is None]
    if missing:
        raise BadPolicy(f'tiers: {missing[0]}: expected a share above 0 or "strict", got None')
    return {name: tier for name, tier in read.items() if tier is not None}


def _default_tier(default: str | None, tiers: Mapping[str, Tier] | None) -> str | None:
    if default is None:
        return None
    if not isinstance(default, str):
        raise UsageError(
            f"Laneway: expected default_tier to be the name of a tier, got {default!r:.80}"
        )
    if tiers is not None and default not in tiers:
        raise BadPolicy(unknown_default(default, tiers))
    return default


def _backlog(value: int | str | None) -> tuple[int | None, int | None]:
    if value is None:
        return None, None
    try:
        if units.is_size(value):
            return None, units.size(value)
    except ValueError as error:
        raise UsageError(f"max_backlog: {error}") from error
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= units.MAX_BYTES:
        raise UsageError(
            f'max_backlog: expected a count above 0 or a size like "10GB", got {value!r:.80}'
        )
    return value, None


def refuse_unknown(call: str, unknown: Iterable[str], known: Iterable[str]) -> None:
    """Raise UsageError if there are unknown options, with the option that was probably meant."""
    for name in unknown:
        known = sorted(known)
        hint = meant_or_known(name, known)
        raise UsageError(f'{call}: unknown option "{name}"{hint}')


def options_of(call: Callable[..., Any]) -> Iterable[str]:
    """The arguments of a call that go by name and have a default."""
    return call.__kwdefaults__ or ()
