"""`DevSession`: the terminal of `laneway dev`, with its keys, its banner and its end."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import msgspec

from laneway.cli.development.keyboard import Keyboard
from laneway.cli.development.program import GRACE_SECONDS, Program
from laneway.cli.development.program_process import Found
from laneway.cli.development.screen import Screen
from laneway.cli.session import USAGE, print_error
from laneway.config import DEV_URL
from laneway.errors import LanewayError
from laneway.printable import redacted
from laneway.push.address_guard import ALLOW_VARIABLE
from laneway.working import child_processes
from laneway.working.banner import installed_version
from laneway.working.log_format import LogStyle
from laneway.working.options import Options

if TYPE_CHECKING:
    from laneway.cli.development.gateway_thread import GatewayThread
    from laneway.cli.development.sink import Sink

LOOK_SECONDS = 0.5
"""How often the session checks its threads."""

BANNER_SECONDS = 5.0
"""How long the last line of the banner waits for the program."""

END_LOOK_SECONDS, KILL_SECONDS = 0.02, 0.7
"""How often the end is checked, and how long it may take when everything stops immediately."""

END_SECONDS = 1.9
"""How long the end may take; then everything is killed."""

WIDTH = 100
"""The longest line of the banner."""

PRIVATE = (
    "localhost",
    "127.0.0.0/8",
    "::1/128",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "fc00::/7",
)
"""Addresses to which push may send during development."""

KEYS = "o open · r reload · p publish · t top · d dead letters · q quit"


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """
    What `laneway dev` runs. `store_source`: what named the store. `namespace`: None: the program's.
    """

    target: str | None
    url: str
    store_source: str
    namespace: str | None
    port: int
    pool: str
    concurrency: int
    sink: int | None
    has_login: bool


class DevSession:
    """Runs until q, Ctrl-C or SIGTERM."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._screen = Screen()
        self._keyboard = Keyboard()
        self._gateway: GatewayThread | None = None
        self._is_serving = threading.Event()
        self._sink: Sink | None = None
        self._program: Program | None = None
        self._fatal: str | None = None
        self._last_topic = ""
        self._began = time.monotonic()
        self._is_named = False
        self._is_banner_open = True
        self._lock = threading.Lock()

    def run(self) -> None:
        """Raises LanewayError if it cannot start."""
        LogStyle(logging.WARNING).apply()
        with self._keyboard, _private_addresses_allowed():
            try:
                gateway = self._start()
            except BaseException:
                self._is_serving.set()
                self._kill()
                raise
            while not self._keyboard.stops and self._fatal is None:
                for key in self._keyboard.wait(LOOK_SECONDS):
                    self._press(gateway, key)
                if self._must_end_banner():
                    self._end_banner()
                for thread in (gateway, self._program):
                    if thread is not None and not thread.is_alive() and self._fatal is None:
                        self._fatal = f"{thread.name} has ended, see the error above"
            is_clean = self._end(gateway)
        if self._fatal is not None:
            print_error(self._fatal)
        child_processes.flush()
        if self._fatal is not None:
            sys.exit(USAGE)
        if not is_clean:
            os._exit(0)  # a thread would hold up the interpreter

    # Start

    def _start(self) -> GatewayThread:
        setup = self._setup
        if setup.target is not None:
            self._program = self._start_program(setup.target)
        # Imported while the program is imported in its process.
        from laneway.cli.development.gateway_thread import GatewayThread

        gateway = GatewayThread(
            setup.url, setup.namespace or "default", setup.port, has_login=setup.has_login
        )
        if setup.sink is not None:
            from laneway.cli.development.sink import Sink

            self._sink = Sink(setup.sink)
            self._sink.start()
        self._gateway = gateway
        gateway.start()
        self._begin_banner(gateway)
        self._is_serving.set()
        if self._program is None:
            self._end_banner()
        return gateway

    def _start_program(self, target: str) -> Program:
        setup = self._setup
        options = Options(
            concurrency=setup.concurrency,
            pool=setup.pool,
            grace=GRACE_SECONDS,
            store=(setup.url, setup.namespace),
        )
        program = Program(
            target,
            options,
            LogStyle(),
            self._screen,
            self._wait_for_pages,
            self._found,
            self._give_up,
        )
        program.start()
        return program

    def _wait_for_pages(self) -> str:
        """The URL of the pages, once the gateway serves."""
        self._is_serving.wait()
        return "" if self._gateway is None else self._gateway.address

    def _give_up(self, text: str) -> None:
        self._fatal = text
        self._keyboard.wake()

    def _found(self, found: Found) -> None:
        """The program was imported; in its thread."""
        if self._gateway is not None:
            try:
                self._gateway.use(found.namespace)
            except LanewayError as error:
                self._screen.error(f"namespace {found.namespace}: {error}")
        if self._is_named:
            self._screen.say("the program was loaded", fg="green")
            return
        self._is_named = True
        self._name_parts(found)
        self._end_banner()

    # The banner: at most eight lines

    def _begin_banner(self, gateway: GatewayThread) -> None:
        setup = self._setup
        asked = setup.port
        taken = f" (port {asked} is taken)" if asked not in (0, gateway.port) else ""
        self._line(f"laneway {installed_version()}", f"{gateway.new_login()}{taken}", bold=True)
        elsewhere = "; elsewhere set LANEWAY_URL to it" if setup.url == DEV_URL else ""
        self._line(
            "store",
            f"{redacted(setup.url)} ({setup.store_source}), {gateway.app.engine.durability}"
            f"{elsewhere}",
        )
        if self._sink is not None:
            wanted = setup.sink
            taken = f" (port {wanted} is taken)" if wanted not in (0, self._sink.port) else ""
            self._line("webhooks", f"{self._sink.address} receives and shows them{taken}")

    def _name_parts(self, found: Found) -> None:
        facts = [] if found.namespace == "default" else [f"namespace {found.namespace}"]
        if found.code_url not in (None, self._setup.url):
            facts.append(
                f"ignored: {redacted(found.code_url or '')} (argument in the code), which it"
                " uses elsewhere"
            )
        if found.pushes:
            facts.append("push may send to private addresses")
        if facts:
            self._line("program", "; ".join(facts))
        for name, values in (
            ("handlers", found.handlers),
            ("tasks", found.tasks),
            ("schedules", found.schedules),
        ):
            if values:
                self._line(name, _in_one_line(values))

    def _name_keys(self) -> None:
        self._line("keys" if self._keyboard.is_there else "stop", _keys(self._keyboard.is_there))

    def _line(self, name: str, value: str, **style: bool) -> None:
        self._screen.say(f"{name:<13} {value}", **style)

    def _must_end_banner(self) -> bool:
        """Whether the program keeps the last line waiting too long."""
        return self._is_banner_open and (
            (self._program is not None and self._program.has_failed.is_set())
            or time.monotonic() - self._began > BANNER_SECONDS
        )

    def _end_banner(self) -> None:
        with self._lock:
            is_open, self._is_banner_open = self._is_banner_open, False
        if is_open:
            self._name_keys()

    # Keys

    def _press(self, gateway: GatewayThread, key: str) -> None:
        match key.lower():
            case "q" | "\x04":
                self._keyboard.stops += 1
            case "o":
                self._screen.say(f"opening {gateway.address}")
                threading.Thread(
                    target=webbrowser.open, args=(gateway.new_login(),), daemon=True
                ).start()
            case "r" if self._program is not None:
                self._program.request("reload")
            case "r":
                self._screen.say("there is no program: laneway dev MODULE:APP")
            case "p":
                self._publish(gateway)
            case "t":
                self._call(gateway, "top")
            case "d":
                self._call(gateway, "dead", "list")
            case "\n" | "\r":
                self._screen.say("")
            case _:
                self._screen.say(KEYS)

    def _publish(self, gateway: GatewayThread) -> None:
        with self._terminal_lent():
            try:
                topic = click.prompt("topic", default=self._last_topic or None)
                body = click.prompt("body (JSON)", default="{}")
            except click.Abort:
                click.echo()
                return
            self._last_topic = topic
            self._run_command(gateway, "publish", "--", topic, body)

    def _call(self, gateway: GatewayThread, *arguments: str) -> None:
        with self._terminal_lent():
            self._run_command(gateway, *arguments)

    def _run_command(self, gateway: GatewayThread, *arguments: str) -> None:
        """Run another command of laneway in this process."""
        from laneway.cli.main import main

        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            main(["-u", self._setup.url, "-n", gateway.app.namespace, *arguments])

    @contextlib.contextmanager
    def _terminal_lent(self) -> Iterator[None]:
        """Nothing else writes to the terminal inside the block."""
        self._screen.hold()
        if self._program is not None:
            self._program.request("hold")
        try:
            with self._keyboard.lent():
                yield
        finally:
            self._screen.show()
            if self._program is not None:
                self._program.request("show")

    # End

    def _end(self, gateway: GatewayThread) -> bool:
        """Stop everything; False: something did not end in time."""
        stops, began = self._keyboard.stops, time.monotonic()
        gateway.end()
        if self._program is not None:
            self._program.request("stop")
        while any(each is not None and each.is_alive() for each in (gateway, self._program)):
            if self._keyboard.stops > max(stops, 1) or time.monotonic() - began > END_SECONDS:
                self._kill()
                return False
            self._keyboard.wait(END_LOOK_SECONDS)
        return True

    def _kill(self) -> None:
        if self._program is not None:
            self._program.request("stop now")
            self._program.join(KILL_SECONDS)


@contextlib.contextmanager
def _private_addresses_allowed() -> Iterator[None]:
    """Let push reach receivers on this machine and its networks, also from the program."""
    given = os.environ.get(ALLOW_VARIABLE)
    os.environ[ALLOW_VARIABLE] = ",".join([*([given] if given else []), *PRIVATE])
    try:
        yield
    finally:
        if given is None:
            del os.environ[ALLOW_VARIABLE]
        else:
            os.environ[ALLOW_VARIABLE] = given


def _keys(are_there: bool) -> str:
    return KEYS if are_there else "Ctrl-C"


def _in_one_line(values: list[str]) -> str:
    """As many values as fit; the others are counted."""
    text = ""
    for index, value in enumerate(values):
        more = f" and {len(values) - index:,} more"
        longer = f"{text}, {value}" if text else value
        if text and len(longer) > WIDTH - len(more):
            return text + more
        text = longer
    return text
