"""Which addresses a sender reaches: the table, every spelling, and names that change."""

from __future__ import annotations

import ipaddress

import pytest

from laneway import Laneway
from laneway.errors import UsageError
from laneway.push.address_guard import Guard, check_url, is_public
from tests.push.receiver import Receiver
from tests.push.test_failing import running, wait_for

REFUSED = [
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.255"),
    *("127.0.0.1", "127.255.255.254", "169.254.169.254", "172.16.0.1", "172.31.255.255"),
    *("192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.0.1", "198.18.0.1", "198.19.255.255"),
    *("198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.255", "240.0.0.1"),
    *(
        "255.255.255.255",
        "168.63.129.16",
        "::ffff:168.63.129.16",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
    ),
    *("::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1"),
    *("100::1", "2001::1", "2001:0:4136:e378::1", "2001:10::1", "2001:20::1", "2001:db8::1"),
    *("2002:7f00:1::", "2002:808:808::1", "3fff::1", "5f00::1", "fc00::1", "fd12:3456::1"),
    *("fe80::1", "febf::1", "fec0::1", "ff02::1", "ff0e::1"),
    *(
        "::ffff:0:7f00:1",
        "::ffff:0:a00:1",
        "::1:7f00:1",
        "1::1",
        "64:ff9b:2::1",
        "4000::1",
        "fe00::1",
    ),
]
PUBLIC = [
    *("1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.1", "100.63.255.255", "100.128.0.1"),
    *("126.255.255.255", "128.0.0.1", "169.253.255.255", "172.15.255.255", "172.32.0.1"),
    *("192.0.1.1", "192.167.255.255", "198.17.255.255", "198.20.0.1", "223.255.255.255"),
    *("2606:4700::1111", "2a00:1450::1", "2001:200::1", "2001:4860:4860::8888", "2003::1"),
    *("::ffff:8.8.8.8", "2001:1::1"),
]


@pytest.mark.parametrize("address", REFUSED)
def test_addresses_that_are_not_public(address: str) -> None:
    """Each is refused, at any port, by a sender without an allow-list."""
    assert not is_public(ipaddress.ip_address(address))
    assert not Guard().allows(address, 443)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    """Each is reached, also just beside a network that is not public."""
    assert Guard().allows(address, 443)


def test_ports_and_scopes() -> None:
    """Ports of other services, interfaces of this machine and what is no address are refused."""
    refused = [0, 22, 23, 25, 53, 79, 81, 111, 135, 139, 442, 445, 587, 1023, 2181, 6379, 6443]
    refused += [8086, 9000, 11211, 26379, 70_000]
    assert not any(Guard().allows("8.8.8.8", port) for port in refused)
    assert all(Guard().allows("8.8.8.8", port) for port in (80, 443, 1024, 8080, 8443, 65_535))
    assert not Guard().allows("2606:4700::1111%eth0", 443)
    assert not Guard().allows("/var/run/docker.sock", 443)


def test_allow_list() -> None:
    """It names networks and hosts, and only these."""
    guard = Guard(["10.1.0.0/16", "hooks.intranet", "fd00:7::/32"])
    assert guard.allows("10.1.2.3", 9000)
    assert guard.allows("fd00:7::1", 80)
    assert not guard.allows("10.2.0.1", 443)
    assert guard.allows("192.168.1.1", 8000, host="HOOKS.intranet.")
    assert not guard.allows("192.168.1.1", 8000, host="other.intranet")
    assert guard.allows("::ffff:10.1.2.3", 443)
    for wrong in ("10.0.0.0/99", "300.1.1.1", "a b", "http://x", ""):
        with pytest.raises(UsageError, match="expected allow to list networks"):
            Guard([wrong])


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://127.0.0.1/", "not public; use a public one, or allow_private=True"),
        ("https://2130706433/", "not public"),
        ("https://0x7f.1/", "not public"),
        ("https://0x7f000001/", "not public"),
        ("https://017700000001/", "not public"),
        ("https://127.1/", "not public"),
        ("https://0/", "not public"),
        ("https://[::1]/", "not public"),
        ("https://[::ffff:127.0.0.1]/", "not public"),
        ("https://[::ffff:7f00:1]/", "not public"),
        ("https://169.254.169.254/latest/meta-data", "not public"),
        ("https://[fe80::1%25eth0]/", "host"),
        ("https://localhost/", "public host name"),
        ("https://metadata.google.internal/", "public host name"),
        ("https://printer.local/", "public host name"),
        ("https://intranet/", "public host name"),
        ("https://user:pw@acme.example/", "user name or password"),
        ("https://acme.example@127.0.0.1/", "user name or password"),
        ("https://acme.example:22/", "port 22"),
        ("https://acme.example:6379/", "port 6379"),
        ("https://acme.example:99999/", "Port out of range"),
        ("http://acme.example/", "http: sends messages unencrypted"),
        ("file:///etc/passwd", "begin with https"),
        ("gopher://acme.example/", "begin with https"),
        ("https:///x", "host"),
        ("https://acme.example/ä", "visible ASCII"),
        ("https://acme.example/a b", "visible ASCII"),
        ("https://acme.example\\@127.0.0.1/", "visible ASCII"),
        ("https://acme.example/\r\nx: y", "."),
        ("https://acme.example/" + "x" * 3_000, "at most 2,000"),
        (None, "expected url to be text"),
    ],
)
def test_urls_that_are_refused(url: object, why: str) -> None:
    """The error says why; it names no password."""
    with pytest.raises(UsageError, match=why) as refusal:
        check_url(url, Guard(), allow_private=False, allow_http=False)
    assert "pw" not in str(refusal.value)


def test_urls_that_are_accepted() -> None:
    for url in (
        "https://acme.example/hooks?a=1",
        "https://8.8.8.8:8443/",
        "https://[2606:4700::1]/",
    ):
        assert check_url(url, Guard(), allow_private=False, allow_http=False).text == url
    url = "http://127.0.0.1:9/"
    assert check_url(url, Guard(["127.0.0.0/8"]), allow_private=False, allow_http=False).text == url
    assert check_url(url, Guard(), allow_private=True, allow_http=False).text == url


def test_name_that_changes_its_address(app: Laneway, receiver: Receiver) -> None:
    """
    A name that resolves to this machine is refused at the socket, whatever it was before; the
    message is retried, its error does not name the address, and no request was made.
    """
    app.policy("push.*", backoff=600, retries=1)
    found = ["127.0.0.1", "::1", "10.0.0.1", "169.254.169.254", "::ffff:127.0.0.1"]
    given: list[str] = []
    (handler, *_) = app.runtime.handlers.by_pattern()

    def lookup(host: str) -> list[str]:
        given.append(found[int(host[5])])
        return [given[-1]]

    handler.settings.lookup = lookup  # type: ignore[attr-defined]
    for n in range(len(found)):
        url = f"http://hooks{n}.acme.example:{receiver.port}/200"
        app.endpoint(f"push.{n}", url=url, allow_http=True)
        app.publish(f"push.{n}", 1)
    app.run_worker(burst=True)
    waiting = [app.topic(f"push.{n}").peek(1)[0] for n in range(5)]
    assert [each.attempt for each in waiting] == [2] * 5
    errors = {each.text for each in app.endpoints.attempts("push.*", status="blocked").attempts}
    assert errors == {"blocked: the address is not public"}
    assert sorted(given) == sorted(found)
    assert receiver.requests == []


def test_name_that_is_private_for_a_moment(
    app: Laneway, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its breaker opens, and it needs attention; its messages are sent once the name leads elsewhere.
    """
    monkeypatch.setattr("laneway.push.resolver.AGAIN_SECONDS", 0.0)
    monkeypatch.setattr("laneway.push.breaker.FIRST_SECONDS", 0.02)
    monkeypatch.setattr("laneway.push.breaker.MAX_SECONDS", 0.02)
    found = ["10.0.0.1"]
    (handler, *_) = app.runtime.handlers.by_pattern()
    handler.settings.allow = ["127.0.0.1"]  # type: ignore[attr-defined]
    handler.settings.lookup = lambda _: found  # type: ignore[attr-defined]
    app.policy("push.x", retries=20)
    url = f"http://hooks.acme.example:{receiver.port}/200"
    endpoint = app.endpoint("push.x", url=url, allow_http=True)
    for n in range(40):
        app.publish("push.x", n)
    with running(app):
        wait_for(lambda: endpoint.info().attention is not None)
        wait_for(lambda: endpoint.info().state == "open")
        assert endpoint.info().attention == "misconfigured: blocked: the address is not public"
        found[0] = "127.0.0.1"
        wait_for(lambda: app.topic("push.x").stats().done == 40)
        wait_for(lambda: endpoint.info().state == "healthy")
    assert app.dead_letters.list() == []


def test_kept_connection_of_another_endpoint(app: Laneway, receiver: Receiver) -> None:
    """A connection that an endpoint with access opened is no way around the guard for another."""
    app.endpoint("push.mine", url=receiver.url("/200"), allow_private=True)
    name = f"http://hooks.acme.example:{receiver.port}/200"
    (handler, *_) = app.runtime.handlers.by_pattern()
    handler.settings.lookup = lambda _: ["127.0.0.1"]  # type: ignore[attr-defined]
    app.endpoint("push.open", url=name, allow_private=True)
    app.endpoint("push.other", url=name, allow_http=True)
    for topic in ("push.mine", "push.open", "push.other"):
        app.publish(topic, 1)
    app.run_worker(burst=True, concurrency=1)
    assert len(receiver.requests) == 2
    assert [letter.message.topic for letter in app.dead_letters.list()] == ["push.other"]


def test_deny_list(app: Laneway, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stronger than the allow-list, `allow_private`, and a sender that reaches everything."""
    deny = ["8.8.0.0/16", "2606:4700::/32", "api.acme.example", "10.1.0.0/16"]
    for guard in (
        Guard(deny=deny),
        Guard(["8.8.8.8", "2606:4700::1111", "api.acme.example", "10.1.2.3"], deny=deny),
        Guard(deny=deny, is_open=True),
        Guard(deny=deny).opened(),
    ):
        assert guard is not None
        for address in ("8.8.8.8", "::ffff:8.8.8.8", "2606:4700::1111", "10.1.2.3"):
            assert not guard.allows(address, 443)
        assert not guard.allows("1.1.1.1", 443, host="API.acme.example.")
        assert guard.allows("1.1.1.1", 443, host="acme.example")
        for host in ("8.8.8.8", "api.acme.example", "[2606:4700::1111]"):
            with pytest.raises(UsageError, match="not public"):
                check_url(f"https://{host}/", guard, allow_private=True, allow_http=True)
    assert Guard().opened() is None
    with pytest.raises(UsageError, match="expected deny to list networks"):
        Guard(deny=["a b"])
    monkeypatch.setenv("LANEWAY_PUSH_DENY", "127.0.0.0/8, other.example")
    (handler, *_) = app.runtime.handlers.by_pattern()
    handler.settings.lookup = lambda _: ["127.0.0.1"]  # type: ignore[attr-defined]
    app.policy("push.*", retries=0)
    url = f"http://hooks.acme.example:{receiver.port}/200"
    app.endpoint("push.x", url=url, allow_private=True)
    app.publish("push.x", 1)
    app.run_worker(burst=True)
    assert [each.error for each in app.dead_letters.list()] == [
        "blocked: the address is not public"
    ]
    assert receiver.requests == []


def test_redirects_are_not_followed(app: Laneway, receiver: Receiver) -> None:
    """The failure says where it pointed."""
    target = receiver.url("/200")
    receiver.answers["/moved"] = lambda: (302, {"location": target})
    app.policy("push.moved", retries=0)
    app.endpoint("push.moved", url=receiver.url("/moved"), allow_private=True)
    app.publish("push.moved", 1)
    app.run_worker(burst=True)
    (letter,) = app.dead_letters.list()
    assert f"redirects are not followed; change the URL to {target}" in (letter.error or "")
    assert [each.path for each in receiver.requests] == ["/moved"]
