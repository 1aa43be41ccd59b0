"""The table of endpoints: settings, secrets, lists, and the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from laneway import Laneway
from laneway.cli import main
from laneway.errors import Refused, UsageError
from laneway.push import secret_store, table
from laneway.push.signature import Key

URL = "https://acme.example/hooks"


def test_settings_stay_until_they_are_reset(app: Laneway) -> None:
    """A call changes what it names; None resets."""
    app.endpoint("push.acme", url=URL, timeout="5s", events=["order.*"], metadata={"a": "b"})
    app.endpoint("push.acme", timeout=7)
    info = app.endpoint("push.acme", events=None).info()
    assert (info.timeout, info.events, info.metadata, info.version) == (7.0, [], {"a": "b"}, 3)
    assert app.endpoint("push.acme").secret is None
    assert app.endpoint("push.acme").remove()
    assert not app.engine.records("endpoint")
    with pytest.raises(Refused, match="does not exist"):
        app.endpoint("push.acme")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"timeout": 0}, "from 0.1 s to 300 s, got 0"),
        ({"timeout": "soon"}, "timeout: expected seconds"),
        ({"headers": {"Host": "x"}}, '"host" cannot be set'),
        ({"headers": {"webhook-id": "x"}}, "cannot be set"),
        ({"headers": {"x": "s3cret\r\ny: 1"}}, "without control characters"),
        ({"headers": {"a b": "x"}}, "name of a header"),
        ({"events": "order.*"}, "expected events to be a list"),
        ({"events": ["*.paid"]}, "an event type like"),
        ({"content": "xml"}, "one of body, standard, cloudevents"),
        ({"template": {"a": "$unknown"}}, "unknown value"),
        ({"dead_on": [200]}, "statuses from 300 to 599"),
        ({"secret": "whsec_c2hvcnQ="}, "base64 of 24 to 64 bytes"),
        ({"verify_tls": "no"}, "true or false"),
        ({"ca": "nonsense"}, "certificate in PEM"),
        ({"ca": "-----BEGIN CERTIFICATE-----\nx"}, "no certificate in PEM that can be read"),
        ({"ca": "-----BEGIN CERTIFICATE-----\nü"}, "certificate in PEM"),
        ({"proxy": "socks5://x"}, "expected proxy to begin with"),
        ({"color": 1}, 'unknown setting "color"; available: url, secret'),
        ({"ulr": "https://a.example"}, 'unknown setting "ulr"; did you mean "url"?'),
        ({"url": "nix"}, "got a text without either"),
    ],
)
def test_settings_that_are_refused(app: Laneway, fields: dict[str, Any], why: str) -> None:
    """The error names the value and what was expected, but no secret; nothing is stored."""
    with pytest.raises(UsageError, match=why) as refusal:
        app.endpoint("push.acme", **{"url": URL} | fields)
    assert "s3cret" not in str(refusal.value)
    assert "c2hv" not in str(refusal.value)
    assert not app.engine.records("endpoint")


def test_secrets_need_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one they are only stored where nobody else can read them."""
    monkeypatch.delenv("LANEWAY_SECRETS_KEY", raising=False)
    path = tmp_path / "q.db"
    with Laneway(f"sqlite:///{path}") as app:
        app.publish("x", 1)
        path.chmod(0o644)
        with pytest.raises(Refused, match="LANEWAY_SECRETS_KEY"):
            app.endpoint("push.acme", url=URL)
        path.chmod(0o600)
        assert app.endpoint("push.acme", url=URL).secret
    monkeypatch.setenv("LANEWAY_SECRETS_KEY", "s3cret-but-no-key")
    with Laneway("sqlite://") as app, pytest.raises(UsageError, match="32 bytes") as refusal:
        app.endpoint("push.acme", url=URL)
    assert "s3cret" not in str(refusal.value)


def test_keys_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new key stands before the old one; a ciphertext belongs to one topic."""
    old, new = secret_store.new_key(), secret_store.new_key()
    monkeypatch.setenv("LANEWAY_SECRETS_KEY", old)
    store = secret_store.of_process("valkey://x")
    stored = store.encrypt(b"secret", "push.acme")
    assert store.decrypt(stored, "push.acme") == b"secret"
    with pytest.raises(Refused, match="belongs to another topic"):
        store.decrypt(stored, "push.evil")
    monkeypatch.setenv("LANEWAY_SECRETS_KEY", f"{new},{old}")
    both = secret_store.of_process("valkey://x")
    assert both.decrypt(stored, "push.acme") == b"secret"
    newest = both.encrypt(b"x", "push.acme")
    assert newest.partition(":")[0] != stored.partition(":")[0]
    monkeypatch.setenv("LANEWAY_SECRETS_KEY", new)
    with pytest.raises(Refused, match="needs the key"):
        secret_store.of_process("valkey://x").decrypt(stored, "push.acme")


def test_lists(app: Laneway) -> None:
    """By topic, page by page, by pattern and state; of a customer with its subscriptions."""
    names = [f"push.{n:03}" for n in range(120)] + [
        "push.acme",
        "push.acme#crm",
        "push.acme!",
        "pushed",
    ]
    created = app.endpoints.set_many((name, {"url": URL}) for name in names)
    assert sorted(each.topic for each in created) == sorted(names)
    assert len({each.secret for each in created}) == len(names)
    app.endpoint("push.007").disable("it is late")
    listed: list[str] = []
    while page := app.endpoints.list("push.*", limit=50, after=listed[-1] if listed else ""):
        listed += [each.topic for each in page]
    assert listed == sorted(set(names) - {"pushed"})
    assert [each.topic for each in app.endpoints.list("push.acme")] == [
        "push.acme",
        "push.acme#crm",
    ]
    assert [each.topic for each in app.endpoints.list(state="disabled")] == ["push.007"]
    app.publish("push.007", 1)
    assert app.topic("push.007").stats().state == "paused"
    assert "crm" in {each.name for each in app.topic("push.acme").subscriptions()}


def test_command_line(tmp_path: Path, key: str) -> None:
    """Set, show, list, rotate, disable, enable, remove; the secret is printed once."""
    url = f"sqlite:///{tmp_path}/q.db"

    def run(*words: str, code: int = 0, stdin: str | None = None) -> str:
        found = CliRunner().invoke(main, ["-u", url, "endpoint", *words], input=stdin)
        assert found.exit_code == code, found.output
        return found.output

    secret = Key(bytes(range(32))).text
    assert "whsec_" in run("set", "push.acme", URL, "--timeout", "5s", "--event", "order.*")
    assert secret not in run("set", "push.acme", "--secret-file", "-", stdin=secret + "\n")
    assert json.loads(run("show", "push.acme", "--json"))["secrets"] == [
        f"whsec_…{secret.rstrip('=')[-4:]}"
    ]
    assert run("rotate", "push.acme").startswith("whsec_")
    run("disable", "push.acme", "--reason", "too slow")
    assert "too slow" in run("list", "--state", "disabled")
    run("enable", "push.acme")
    assert run("list", "--state", "failing") == "no endpoint of * is failing\n"
    lines = "".join(json.dumps({"topic": f"push.{n}", "url": URL}) + "\n" for n in range(3))
    assert run("load", stdin=lines).count("whsec_") == 3
    assert json.loads(run("list", "--json"))[0]["topic"] == "push.0"
    run("remove", "push.acme")
    assert "does not exist" in run("show", "push.acme", code=1)
    assert "http" in run("set", "push.x", "http://acme.example/", code=2)
    assert "expected NAME" in run("set", "push.x", URL, "--header", "auth s3cret", code=2)
    assert len(run("key").strip()) == 44


def test_import_is_lazy() -> None:
    """
    `import laneway`, and an application that pushes nothing, import none of it but `app.endpoints`.
    """
    code = (
        "import sys, laneway; laneway.Laneway('sqlite://').publish('a', 1);"
        "names = ('laneway.push', 'pycurl', 'cryptography');"
        "found = {each for each in sys.modules if each.startswith(names)};"
        "print(sorted(found - {'laneway.push', 'laneway.push.endpoints'}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_endpoints_by_state(app: Laneway) -> None:
    """They have an index and a count, which survive changes that cross."""
    app.endpoints.set_many((f"push.{n}", {"url": URL}) for n in range(40))
    engine = app.engine

    def states(state: table.State, pattern: str = "*") -> list[str]:
        found = [each.topic for each in app.endpoints.list(pattern, state=state)]
        assert table.count(engine, state, pattern=pattern) == len(found)
        return found

    assert engine.records("endpoint_state") == []
    for name in ("push.3", "push.30", "push.39"):
        app.endpoint(name).disable()
    assert states("disabled") == ["push.3", "push.30", "push.39"]
    assert states("disabled", "push.*") == ["push.3", "push.30", "push.39"]
    assert states("disabled", "push.3") == ["push.3"]
    page, following = table.listed(engine, state="disabled", limit=2)
    assert ([topic for topic, _ in page], following) == (["push.3", "push.30"], "push.30")
    page, following = table.listed(engine, state="disabled", limit=2, after="push.30")
    assert ([topic for topic, _ in page], following) == (["push.39"], None)
    assert len(app.endpoints.list(state="healthy")) == 37
    app.endpoint("push.3").enable()
    app.endpoint("push.30").remove()
    assert (states("disabled"), states("probing")) == (["push.39"], ["push.3"])

    def disable_meanwhile(record: table.Record | None) -> table.Record | None:
        """Enable it, while another one enables and disables it again."""
        assert record is not None
        if not crossed:
            crossed.append(True)
            app.endpoint("push.39").enable()
            table.update(engine, "push.39", disabled)
        record.disabled = None
        return record

    def disabled(record: table.Record | None) -> table.Record | None:
        assert record is not None
        record.disabled = "again"
        return record

    crossed: list[bool] = []
    table.update(engine, "push.39", disable_meanwhile)
    assert states("disabled") == []
    table.update(engine, "push.39", disabled)
    assert states("disabled") == ["push.39"]
    # One that a killed process left behind is dropped when it is listed.
    engine.record_swap("endpoint_state", "open push.7", None, b"1")
    assert app.endpoints.list(state="open") == []
    assert table.count(engine, "open") == 0
