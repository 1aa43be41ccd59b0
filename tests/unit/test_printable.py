"""URLs without passwords, text without control characters."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from laneway.printable import escaped, escaped_json, redacted, without_passwords


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("valkey://localhost:6379/0", "valkey://localhost:6379/0"),
        ("valkey://:pw@localhost:6379/0?timeout=3", "valkey://***@localhost:6379/0?timeout=3"),
        (
            "valkey://:pw@localhost:6379?timeout=3&ca=/a.pem",
            "valkey://***@localhost:6379?timeout=3&ca=/a.pem",
        ),
        ("valkey://:12?x=pw", "valkey://:***"),
        ("valkey://localhost:6379?shards=4", "valkey://localhost:6379?shards=4"),
        ("valkey+cluster://a:1,[::1]:2?timeout=3", "valkey+cluster://a:1,[::1]:2?timeout=3"),
        ("valkey://user:p1?x=y", "valkey://user:***"),
        ("valkey://user:p@w/x@localhost", "valkey://***@localhost"),
        (
            "valkey+sentinel://u:pw@a:1,b:2/mine?sentinel_password=x@y&timeout=3",
            "valkey+sentinel://***@a:1,b:2/mine?sentinel_password=***&timeout=3",
        ),
        ("valkey+cluster://:pw@[::1]:7000,b:2", "valkey+cluster://***@[::1]:7000,b:2"),
        ("valkey://[::1]", "valkey://[::1]"),
        ("unix://:pw@/run/valkey.sock", "unix://***@/run/valkey.sock"),
        ("sqlite:////home/me@here/laneway.db", "sqlite:////home/me@here/laneway.db"),
        ("valkey://:pw", "valkey://:***"),
        (":pw@localhost", "***@localhost"),
        ("laneway.db", "laneway.db"),
    ],
)
def test_redacted_url_has_no_password(url: str, shown: str) -> None:
    """Scheme, host, port and path stay, because they help to find a mistake."""
    assert redacted(url) == shown
    assert redacted(shown) == shown


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="/?#"), min_size=1),
    st.sampled_from(["h", "a:1,b:2", "[::1]:3"]),
)
def test_any_password_is_hidden(password: str, hosts: str) -> None:
    """This holds for any characters between user and host."""
    assert redacted(f"valkey://u:{password}@{hosts}/1") == f"valkey://***@{hosts}/1"


def test_text_without_passwords_is_unchanged() -> None:
    """Only users of URLs, and options with the name of a secret, are hidden."""
    assert (
        without_passwords("no answer from redis://u:pw@h:1/0 (it said no); me@here")
        == "no answer from redis://***@h:1/0 (it said no); me@here"
    )
    advice = "write valkey://:PASSWORD@HOST, or USER:PASSWORD@"
    assert without_passwords(advice) == advice
    assert "eve" not in without_passwords("at valkey://:PASSWORD@HOSTeve@h")
    assert "eve" not in without_passwords("at valkey://:PASSWORD@HOST/eve@h")
    assert (
        without_passwords("GET https://x.example/a?page=3&api_token=abc failed")
        == "GET https://x.example/a?page=3&api_token=*** failed"
    )


def test_control_characters_are_escaped() -> None:
    """All characters that a terminal would obey are escaped, and no others."""
    hostile = "\x1b]0;x\x07\x9b2J\x7f\r\n\t\u202e\u2066\u200f\u061c\u2028\u2029\udcff\ud800"
    assert (
        escaped(hostile) == "\\x1b]0;x\\x07\\x9b2J\\x7f\\x0d\\x0a\\x09"
        "\\u202e\\u2066\\u200f\\u061c\\u2028\\u2029\\udcff\\ud800"
    )
    assert escaped("a\n\tb\r\n", lines=True) == "a\n    b\\x0d\n"
    assert escaped("grün 漢字 👩‍👧 café") == "grün 漢字 👩‍👧 café"


@given(st.text())
def test_escaped_json_has_the_same_value(text: str) -> None:
    """An escaped document is still JSON."""
    document = escaped_json(json.dumps([text, "\x9b\u202e\x7f\udc80"], ensure_ascii=False))
    assert json.loads(document) == [text, "\x9b\u202e\x7f\udc80"]
    assert escaped(document) == document
