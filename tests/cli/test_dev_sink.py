"""The receiver of webhooks of `laneway dev --sink`."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Iterator

import pytest

from laneway.cli.development.sink import Sink, switches_of


@pytest.fixture(scope="module")
def sink() -> Iterator[Sink]:
    sink = Sink(0)
    sink.start()
    yield sink
    sink.close()


def send(
    sink: Sink, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(sink.address.removeprefix("http://"), timeout=20)
    try:
        connection.request(
            method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def test_requests_are_shown(sink: Sink) -> None:
    """A webhook is answered and shown with its headers and body; nothing in it becomes markup."""
    assert send(sink, "POST", "/hooks?a=<b>", b'{"order": "<script>"}', webhook_id="m1")[0] == 200
    assert send(sink, "PUT", "/raw", b"\xff\x00\x1b")[0] == 200
    status, page, headers = send(sink, "GET", "/")
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "webhook-id: m1" in page
    assert "&quot;order&quot;: &quot;&lt;script&gt;&quot;" in page
    assert "/hooks?a=&lt;b&gt;" in page
    assert "ff 00 1b" in page
    assert "<script>" not in page
    newest = sink.after(0)[0].number
    assert send(sink, "GET", f"/_requests?after={newest}")[1] == ""
    assert "/raw" in send(sink, "GET", f"/_requests?after={newest - 1}")[1]
    for path in ("/_style.css", "/_page.js"):
        assert send(sink, "GET", path)[0] == 200


def test_switches(sink: Sink) -> None:
    """The status, the delay and the end of the connection are as the page says."""
    assert send(sink, "POST", "/_switches", b"status=503&delay=0.05")[0] == 303
    began = time.monotonic()
    assert send(sink, "POST", "/hooks")[0] == 503
    assert time.monotonic() - began >= 0.05
    assert 'value="503"' in send(sink, "GET", "/")[1]
    assert send(sink, "POST", "/_switches", b"close=yes")[0] == 303
    with pytest.raises(http.client.RemoteDisconnected):
        send(sink, "POST", "/hooks")
    assert sink.after(0)[0].answer == "closed"
    assert send(sink, "POST", "/_switches", b"")[0] == 303
    assert send(sink, "POST", "/hooks")[0] == 200


@pytest.mark.parametrize(
    ("form", "error"),
    [
        ("status=99", "status: expected 200 to 599, got '99'"),
        ("status=x", "status: expected 200 to 599, got 'x'"),
        ("delay=nan", "delay: expected 0 to 300 seconds, got 'nan'"),
        ("delay=-1", "delay: expected 0 to 300 seconds, got '-1'"),
        ("speed=1", "unknown switch 'speed'; available: status, delay, close"),
    ],
)
def test_wrong_switches(sink: Sink, form: str, error: str) -> None:
    """A wrong switch is refused with what was expected."""
    with pytest.raises(ValueError, match=f"^{re.escape(error)}$"):
        switches_of(form)
    assert send(sink, "POST", "/_switches", form.encode())[:2] == (400, error)


def test_other_sites(sink: Sink) -> None:
    """Other sites can neither read the page nor change a switch; a body needs a length."""
    assert send(sink, "GET", "/", Host="evil.example")[0] == 403
    assert send(sink, "POST", "/_switches", b"status=500", Sec_Fetch_Site="cross-site")[0] == 403
    assert send(sink, "POST", "/hooks", Host="evil.example")[0] == 200
    connection = http.client.HTTPConnection(sink.address.removeprefix("http://"), timeout=20)
    connection.putrequest("POST", "/hooks")
    connection.putheader("transfer-encoding", "chunked")
    connection.endheaders()
    assert connection.getresponse().status == 411
    connection.close()
