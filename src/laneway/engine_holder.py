"""
`EngineHolder`: an application's engine. It chooses the store, opens it at first use, and sets the
policies, gates and tiers that were declared before.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from laneway import arguments, config, programs
from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.errors import EngineUnavailable
from laneway.policy import Gate, check_changes, check_fields
from laneway.tiers import Tier, check_tiers

log = logging.getLogger("laneway")


class EngineHolder:
    """
    Opens the engine of one application, once in each process.

    `url`: the argument of the code, None for the default. `program`, `version`: the declared
    policies and gates belong to these.
    """

    def __init__(
        self, url: str | None, settings: Settings, program: str, version: str | None
    ) -> None:
        self.settings = settings
        self._argument = url
        self._chosen_url: str | None = None
        self.options: tuple[str | None, str | None] = (None, None)
        """URL and namespace that replace those of the code; the worker's processes use the same."""
        self._program = program
        self._version = version
        self._gates: dict[str, Gate] = {}
        self._policies: dict[str, dict[str, Any]] = {}
        self._later: tuple[dict[str, dict[str, Any]], dict[str, Gate]] = ({}, {})
        """Policies and gates that were set while the store was open."""
        self._declared_to: set[tuple[str, str]] = set()
        """URL and namespace of the stores that were opened."""
        self._tier_changes: dict[str, Tier | None] = {}
        self._tiers_to_set: dict[str, Tier | None] = {}
        self.begin()

    def begin(self) -> None:
        """Begin without an engine, in a new process."""
        self.lock = threading.RLock()
        """Held while the engine is opened, closed or replaced."""
        self.opened: FullEngine | None = None
        """The engine, None while it is closed."""
        self._pid = 0

    # Choosing the store

    @property
    def url(self) -> str:
        """The engine's URL, with its password if it has one."""
        if self._chosen_url is None:
            self._chosen_url = self.options[0] or self._argument or config.default_url()
        return self._chosen_url

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        return self.settings.namespace

    @property
    def choice(self) -> config.StoreChoice:
        """The store, the setting that named it, and the settings that name another one."""
        return config.choose_store(self.options[0], self._argument)

    def name(self, url: str | None) -> None:
        """Set the URL of the code, before the engine is opened."""
        self._argument = url
        self._chosen_url = None

    def use(self, url: str | None, namespace: str | None) -> None:
        """Replace the code's URL, namespace, or both, of a closed engine. Raises UsageError."""
        if url is not None:
            arguments.name("use_store", "url", url)
        if namespace is not None:
            self.settings = msgspec.structs.replace(
                self.settings, namespace=config.check_namespace(namespace)
            )
        self.options, self._chosen_url = (url, namespace), None

    # Opening it

    @property
    def is_open(self) -> bool:
        """Whether this process has the engine open."""
        return self.opened is not None and self._pid == os.getpid()

    @property
    def engine(self) -> FullEngine:
        """The engine, opened at first use; a forked child opens its own."""
        if self.opened is not None and self._pid == os.getpid():
            return self.opened
        with self.lock:
            if self.opened is None or self._pid != os.getpid():
                self.opened = self._open()
                self._pid = os.getpid()
            return self.opened

    def _open(self) -> FullEngine:
        hint = config.hint_of_dev(self.url)
        try:
            engine = open_engine(self.url, self.settings)
        except EngineUnavailable as error:
            if hint:
                error.add_note(hint)
            raise
        if hint:
            log.warning("%s is a new store; %s", self.url, hint)
        store = (self.url, self.namespace)
        if store not in self._declared_to or not engine.capabilities.persistent:
            self._declare_later()
        engine = self._with_settings(engine, self._tiers_to_set)
        self._declared_to.add(store)
        self._tiers_to_set = {}
        return engine

    def _declare_later(self) -> None:
        """Declare to the next store what was set while the previous one was open."""
        policies, gates = self._later
        for pattern, fields in policies.items():
            self._policies[pattern] = {**self._policies.get(pattern, {}), **fields}
        self._gates |= gates
        self._later = ({}, {})

    def _with_settings(self, engine: FullEngine, tiers: Mapping[str, Tier | None]) -> FullEngine:
        """Set the tiers and declare the policies and gates; closes the engine on an error."""
        try:
            if tiers:
                engine.tier_set("code", tiers)
            programs.declare(engine, self._program, self._version, self._policies, self._gates)
        except BaseException:
            engine.close()
            raise
        return engine

    @contextlib.contextmanager
    def replaced(self, make: Callable[[Settings], FullEngine]) -> Iterator[FullEngine]:
        """Use another engine inside the block; the caller closes it."""
        with self.lock:
            self._declare_later()
            own = (self.opened, self._pid)
            engine = self._with_settings(make(self.settings), self._tier_changes)
            self.opened, self._pid = engine, os.getpid()
        try:
            yield engine
        finally:
            with self.lock:
                self.opened, self._pid = own

    def close(self) -> None:
        """Close the engine; the next use opens it again."""
        with self.lock:
            engine, self.opened = self.opened, None
        if engine is not None and self._pid == os.getpid():
            engine.close()

    # Settings: declared when the engine is opened, or set at once if it is open

    def set_tiers(self, changes: Mapping[str, Tier | float | str | None]) -> None:
        """Add and change tiers; None removes one. Raises BadPolicy."""
        checked = check_tiers(changes)
        with self.lock:
            self._tier_changes |= checked
            if self.opened is None:
                self._tiers_to_set |= checked
            elif checked:
                self.opened.tier_set("code", checked)

    def set_policy(self, pattern: str, fields: Mapping[str, Any]) -> None:
        """Set fields of a policy; None removes one. Raises BadPolicy."""
        checked = check_fields(pattern, fields)
        with self.lock:
            policies = self._policies if self.opened is None else self._later[0]
            policies[pattern] = {**policies.get(pattern, {}), **checked}
            if self.opened is not None:
                self.opened.policy_set("code", pattern, checked)

    def declared_fields(self, pattern: str) -> set[str]:
        """The names of the fields that this program has set for a pattern."""
        with self.lock:
            return {*self._policies.get(pattern, ()), *self._later[0].get(pattern, ())}

    def declare_many(self, policies: Iterable[tuple[str, Mapping[str, Any]]]) -> int | None:
        """
        Declare many policies for the engine's opening; returns how many. None: the engine is open,
        nothing was read. Raises BadPolicy.
        """
        with self.lock:
            if self.opened is not None:
                return None
            count = 0
            for pattern, checked in check_changes(policies):
                before = self._policies.get(pattern)
                self._policies[pattern] = (
                    checked if before is None else {**before, **checked}
                )  # equal ones share one dict
                count += 1
            return count

    def set_gate(self, name: str, gate: Gate) -> None:
        """Set a gate. Raises BadPolicy."""
        with self.lock:
            gates = self._gates if self.opened is None else self._later[1]
            gates[name] = gate
            if self.opened is not None:
                self.opened.gate_set(name, gate, layer="code")
