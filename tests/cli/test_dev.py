"""`laneway dev` in real processes and terminals."""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from laneway import Laneway
from tests.cli.pty_support import UNHURRIED, InTerminal

PROGRAM = """\
import os
import time

from laneway import Laneway, Message

app = Laneway("sqlite:///production.db", namespace="{namespace}")
app.policy("push.*", retries=0)


@app.handler("push.*")
def deliver(message: Message) -> None:
    if message.body["order"] == 13:
        raise ValueError("unlucky")
    print("{version} begins", message.body["order"], flush=True)
    while not os.path.exists(message.body.get("until", ".")):
        time.sleep(0.02)
    print("{version} handled", message.body["order"], flush=True)
"""

STORE = "sqlite:///laneway-dev.db"


def write(folder: Path, version: str, namespace: str = "default") -> None:
    replace(folder / "shop.py", PROGRAM.format(version=version, namespace=namespace))


def replace(file: Path, text: str) -> None:
    """Write a file that `dev` watches at once: it must not read the beginning."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


def get(port: int, path: str = "/healthz", cookie: str = "") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path, headers={"cookie": cookie} if cookie else {})
        return connection.getresponse().status
    finally:
        connection.close()


def log_in(output: str) -> str:
    """Use the last login that was shown. Returns the session's cookie; "": it was refused."""
    port, code = re.findall(r"http://127\.0\.0\.1:(\d+)/login#([\w-]+)", output)[-1]
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
    try:
        form = {"content-type": "application/x-www-form-urlencoded"}
        own = {"origin": f"http://127.0.0.1:{port}"}
        connection.request("POST", "/login/code", f"code={code}&next=", form | own)
        cookie = connection.getresponse().headers["set-cookie"] or ""
        return cookie.partition(";")[0]
    finally:
        connection.close()


def port_in(output: str) -> int:
    found = re.search(r"http://127\.0\.0\.1:(\d+)", output)
    assert found, output
    return int(found[1])


@pytest.fixture(autouse=True)
def _no_store_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LANEWAY_URL", raising=False)


class Dev:
    """`laneway dev` without a terminal; its log is on its standard output."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", UNHURRIED, "dev", "--port", "0", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.output = ""

    def wait_for(self, text: str, times: int = 1) -> str:
        """Read until the text has come so often since the start."""
        assert self.process.stdout is not None
        while self.output.count(text) < times:
            line = self.process.stdout.readline()
            assert line, f"{text!r} did not come, but: {self.output}"
            self.output += line
        return self.output

    def end(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        assert self.process.wait(timeout=60) == 0

    def __enter__(self) -> Dev:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_a_session_in_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The page is up, for who uses a login that was shown; keys open it with a new login, publish and
    show dead letters; a mistake is shown and the old code keeps running; the corrected code
    handles; Ctrl-C ends everything and gives the terminal back.
    """
    write(tmp_path, "v1")
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    os.mkfifo(opened)
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    run = "import os; os.login_tty(0)\n" + UNHURRIED
    with InTerminal("dev", "shop:app", "--port", "0", run=run, folder=tmp_path) as terminal:
        terminal.wait_for("q quit")
        banner = terminal.output.partition("q quit")[0].splitlines()  # more may have come
        assert len(banner) <= 8, banner
        terminal.wait_for("is ready")
        assert f"{STORE} (the default of dev), fsync; elsewhere set LANEWAY_URL" in terminal.output
        assert (
            "ignored: sqlite:///production.db (argument in the code), which it uses elsewhere"
        ) in terminal.output
        assert "push.* (deliver)" in terminal.output
        port = port_in(terminal.output)
        assert get(port) == 200
        assert get(port, "/v1/topics") == 401
        cookie = log_in(terminal.output)
        assert log_in(terminal.output) == ""  # once
        terminal.press(b"o")
        terminal.wait_for(f"opening http://127.0.0.1:{port}")
        again = log_in(opened.read_text())  # a pipe: waits for the browser
        assert get(port, "/", again) == 200
        assert terminal.output.count("/login#") == 1  # that of the first line

        def publish(order: int, then: str) -> None:
            terminal.press(b"p")
            terminal.wait_for("topic: " if order == 1 else "topic [push.acme]: ")
            terminal.press(b"\n" if order > 1 else b"push.acme\n")  # the last one is proposed
            terminal.wait_for("body")
            terminal.press(b'{"order": %d}\n' % order)
            terminal.wait_for_all("accepted", then)  # it may be handled first

        publish(1, "v1 handled 1")
        publish(13, "dead letter")
        assert re.search(
            r"message \S+ in topic push\.acme: attempt 1 failed: ValueError: unlucky"
            r" \(\S+shop\.py:13\)",
            terminal.output,
        )
        terminal.wait_for(f"; see http://127.0.0.1:{port}/topic?name=push.acme")
        assert get(port, "/topic?name=push.acme", cookie) == 200
        terminal.press(b"d")
        terminal.wait_for("unlucky")
        terminal.press(b"t")
        terminal.wait_for("top by backlog")
        terminal.press(b"q")  # ends the view only

        source = (tmp_path / "shop.py").read_text()
        replace(tmp_path / "shop.py", source + "\nnonsense()\n")
        terminal.wait_for("the old code keeps running until a file changes")
        assert re.search(r"shop\.py\", line 19", terminal.output), terminal.output
        assert "name 'nonsense' is not defined" in terminal.output
        publish(2, "v1 handled 2")
        write(tmp_path, "v2")
        terminal.wait_for("the program was loaded")
        publish(3, "v2 handled 3")
        terminal.press(b"r")
        terminal.wait_for("the program was loaded")
        terminal.press(b"\x03")
        assert terminal.end() == 0
        assert terminal.attributes() == terminal.before
    assert not (tmp_path / "production.db").exists()
    assert (tmp_path / "laneway-dev.db").stat().st_mode & 0o077 == 0


def test_what_runs_finishes(tmp_path: Path) -> None:
    """
    After a change the old code finishes what runs while the new code works. At the end a message
    that takes too long goes back, and no attempt is counted.
    """
    write(tmp_path, "v1", "sandbox")
    with (
        Dev(tmp_path, "shop:app") as dev,
        Laneway(f"sqlite:///{tmp_path}/laneway-dev.db", namespace="sandbox") as app,
    ):
        port = port_in(dev.wait_for("Ctrl-C"))
        cookie = log_in(dev.output)  # in this namespace or the one before
        dev.wait_for("is ready")
        app.publish("push.acme", {"order": 1, "until": "go"})
        dev.wait_for("v1 begins 1")
        write(tmp_path, "v2", "sandbox")
        dev.wait_for("the program was loaded")
        app.publish("push.globex", {"order": 2})
        dev.wait_for("v2 handled 2")
        (tmp_path / "go").touch()
        dev.wait_for("v1 handled 1")
        dev.wait_for("stopped after")  # the old worker
        newest = re.findall(r"worker (\d+) is ready", dev.wait_for("is ready", 2))[-1]
        os.kill(int(newest), signal.SIGKILL)
        dev.wait_for("is ready", 3)
        assert (
            "the program was killed by signal 9 (SIGKILL); it starts again in 0.5 s" in dev.output
        )
        assert get(port, "/v1/topics/push.acme", cookie) == 200  # the program's namespace
        stuck = app.publish("push.acme", {"order": 3, "until": "never"})
        dev.wait_for("v2 begins 3")
        dev.end(signal.SIGINT)
        assert app.topic("push.acme").stats().waiting == 1
        [delivery] = app.lease(1)
        assert (delivery.message.id, delivery.attempt) == (stuck.id, 1)


def test_gateway_and_receiver_alone(tmp_path: Path) -> None:
    """Without a program there are the gateway and the receiver; a port that is taken is skipped."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Dev(tmp_path, "--port", str(port), "--sink", str(port), "--no-login") as dev:
            banner = dev.wait_for("Ctrl-C")
            assert banner.count(f"(port {port} is taken)") == 2
            gateway, sink = map(int, re.findall(r"http://127\.0\.0\.1:(\d+)", banner))
            assert gateway > port
            assert get(gateway, "/v1/topics") == 200
            assert get(gateway, "/") == 200
            assert get(sink, "/") == 200
            assert get(sink, "/hooks") == 200
            dev.end()


def test_push_to_the_receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Push may send to this machine; the receiver shows the signed request."""
    pytest.importorskip("pycurl")
    (tmp_path / "shop.py").write_text(
        "from laneway import Laneway\n\napp = Laneway()\napp.push('push.*')\n"
    )
    with (
        Dev(tmp_path, "shop:app", "--sink", "0") as dev,
        Laneway(f"sqlite:///{tmp_path}/laneway-dev.db") as app,
    ):
        output = dev.wait_for("is ready")
        assert "push may send to private addresses" in output
        [receiver] = re.findall(r"webhooks +http://(127\.0\.0\.1:\d+) ", output)
        monkeypatch.setenv("LANEWAY_PUSH_ALLOW", "127.0.0.1")
        app.endpoint("push.acme", url=f"http://{receiver}/hooks")
        message = app.publish("push.acme", {"order": 42}).id
        dev.wait_for("succeeded in")
        with urllib.request.urlopen(f"http://{receiver}/", timeout=60) as page:
            shown = page.read().decode()
        assert f"webhook-id: {message}" in shown
        assert "webhook-signature: v1," in shown
        dev.end()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["no_such:app"], 'there is no module "no_such"'),
        (["shop:nothing"], 'has no "nothing"; did you mean shop:app?'),
        (["-u", "sqlite://"], "expected a store that several processes share"),
        (["--port", "70000"], "--port"),
    ],
)
def test_wrong_calls(tmp_path: Path, arguments: list[str], error: str) -> None:
    """A wrong call ends with one line and exit code 2."""
    write(tmp_path, "v1")
    with Dev(tmp_path, *arguments) as dev:
        output, _ = dev.process.communicate(timeout=60)
        assert dev.process.returncode == 2, output
    assert error in output
    assert "Traceback" not in output


def test_a_program_that_cannot_be_imported_yet(tmp_path: Path) -> None:
    """The gateway is up, the mistake is shown with its place, and the corrected program runs."""
    (tmp_path / "shop.py").write_text("from laneway import Laneway\n\nint('no number')\n")
    with Dev(tmp_path, "shop:app") as dev:
        dev.wait_for("nothing is handled until a file changes")
        dev.wait_for("Ctrl-C")
        for line in ('shop.py", line 3', "int('no number')", "ValueError"):
            assert dev.output.count(line) == 1, dev.output
        assert get(port_in(dev.output)) == 200
        (tmp_path / "orders.db").write_text("no change of the program")
        write(tmp_path, "v1")
        dev.wait_for("is ready")
        assert "modules in" not in dev.output
        dev.end()
