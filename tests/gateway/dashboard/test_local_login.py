"""The one-time login of `laneway dev`: who gets in, and who does not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from laneway import Laneway
from laneway.gateway.login import local_login, tokens
from laneway.gateway.login.local_login import MAX_CODES, LocalLogin
from tests.gateway.conftest import Api, serving
from tests.gateway.dashboard.conftest import Browser, Page, running

KEY = bytes(range(32))
CROSS = {"sec_fetch_site": "cross-site"}


@pytest.fixture(scope="module")
def logins() -> LocalLogin:
    return LocalLogin(KEY)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laneway]:
    folder = tmp_path_factory.mktemp("shop")
    with Laneway(f"sqlite:///{folder}/shop.db", durability="memory") as app:
        yield app


@pytest.fixture(scope="module")
def server(shop: Laneway, logins: LocalLogin) -> Iterator[Browser]:
    with running(shop, login=logins) as browser:
        yield browser


@pytest.fixture
def browser(server: Browser) -> Browser:
    """A browser that has not logged in."""
    return Browser(server.port)


def use(browser: Browser, code: str, following: str = "", **headers: str) -> Page:
    """Send the form of the login, and keep the cookie."""
    fields = urlencode({"code": code, "next": following})
    found = browser.send("POST", "/login/code", fields, **headers)
    if cookie := found.headers.get("set-cookie"):
        browser.cookie = cookie.partition(";")[0]
    return found


def test_a_code_begins_one_session(browser: Browser, logins: LocalLogin) -> None:
    """A code lets one browser in, which may do everything; the second one reads what to do."""
    assert browser.send("GET", "/topics").headers["location"] == "/login?next=%2Ftopics"
    code = logins.new_code()
    answer = use(browser, code, "/topics")
    assert (answer.status, answer.headers["location"]) == (303, "/topics")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"laneway-{browser.port}=")  # another gateway here has another one
    assert cookie.endswith("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict")
    assert "Log out" in browser.get("/topics").text
    assert browser.send("GET", "/v1/tokens").status == 200
    second = Browser(browser.port)
    refused = use(second, code)
    assert refused.status == 403
    assert "This link was used already, or it is older than ten minutes." in refused.words
    assert "Press o in the terminal of laneway dev" in refused.words
    assert code not in refused.text
    assert second.cookie == ""


def test_who_has_a_session_goes_on(browser: Browser, logins: LocalLogin) -> None:
    """A used link, and a tab that waits at the login, lead on in a browser that is logged in."""
    code = logins.new_code()
    use(browser, code)
    again = use(browser, code, "/dead")
    assert (again.status, again.headers["location"]) == (303, "/dead")
    waiting = browser.send("GET", "/login?next=%2Fdead")
    assert (waiting.status, waiting.headers["location"]) == (303, "/dead")
    assert browser.send("GET", "/login").status == 200


@pytest.mark.parametrize(
    ("headers", "detail"),
    [
        ({"host": "evil.example"}, "only for localhost"),  # DNS rebinding
        (CROSS, "no page of another site"),
        ({"sec_fetch_site": "same-site"}, "no page of another site"),  # another port
        ({"sec_fetch_site": "none"}, "own page"),
    ],
)
def test_other_sites_cannot_log_in(
    browser: Browser, logins: LocalLogin, headers: dict[str, str], detail: str
) -> None:
    """Even a right code is of no use to a page of another site, and stays valid."""
    code = logins.new_code()
    refused = use(browser, code, **headers)
    assert refused.status == 403
    assert detail in refused.words
    assert logins.use_code(code)


def test_other_sites_have_no_use_of_a_session(browser: Browser, logins: LocalLogin) -> None:
    """What another site makes the browser send is refused, with its cookie and without."""
    use(browser, logins.new_code())
    assert browser.send("GET", "/v1/topics", **CROSS, sec_fetch_mode="cors").status == 403
    assert browser.send("POST", "/actions/pause", "topic=a").status == 403  # no csrf
    rebound = Browser(browser.port)
    assert rebound.send("GET", "/v1/topics", host="evil.example").status == 401


def test_programs_send_a_token(browser: Browser, shop: Laneway) -> None:
    """A program without a token reads how to get one; with one it needs no login."""
    answer = browser.send("GET", "/v1/topics", accept="application/json")
    assert answer.status == 401
    assert "laneway token create" in answer.text
    _, browser.token, _ = tokens.create(shop.engine, "script", ["read"])
    assert browser.send("GET", "/v1/topics").status == 200


def test_other_users_of_the_machine(
    browser: Browser, logins: LocalLogin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A code that another user saw, as an argument of a browser's process, lets nobody in."""
    if not local_login._CONNECTIONS.exists():
        pytest.skip("only Linux tells whose a connection is")
    uid, other = os.getuid(), os.getuid() + 1
    assert use(browser, logins.new_code()).status == 303

    class Listed:
        def read_text(self) -> str:
            found = Path("/proc/net/tcp").read_text().splitlines()
            return "\n".join(line.replace(f" {uid} ", f" {other} ", 1) for line in found)

    monkeypatch.setattr(local_login, "_CONNECTIONS", Listed())
    code = logins.new_code()
    refused = use(Browser(browser.port), code)
    assert refused.status == 403
    assert "another user" in refused.words
    assert logins.use_code(code)


def test_sessions_outlive_the_gateway(browser: Browser, shop: Laneway, logins: LocalLogin) -> None:
    """With the same key a login holds; a gateway with tokens does not know it; logging out ends."""
    use(browser, logins.new_code())
    with running(shop, login=LocalLogin(KEY)) as later:
        later.cookie = browser.cookie.replace(str(browser.port), str(later.port))
        assert later.send("GET", "/").status == 200
    with running(shop, login=LocalLogin(bytes(32))) as stranger:
        stranger.cookie = browser.cookie.replace(str(browser.port), str(stranger.port))
        assert stranger.send("GET", "/").status == 303
    with running(shop) as serve:
        serve.cookie = browser.cookie.replace(str(browser.port), str(serve.port))
        assert serve.send("GET", "/v1/topics").status == 401
    page = browser.get("/")
    csrf = page.text.partition('name="csrf" content="')[2].partition('"')[0]
    browser.send("POST", "/logout", urlencode({"csrf": csrf}))
    assert browser.send("GET", "/").status == 303


def test_the_login_of_serve(tmp_path: Path) -> None:
    """
    Until there is a token, `laneway serve` shows a link that lets one browser in. With a token it
    shows none, and without the last one nobody gets in.
    """
    store = f"sqlite:///{tmp_path}/shop.db"
    with serving(store, has_login=True) as (api, _):
        assert "--no-login" in api.problem("GET", "/v1/topics", status=401)["detail"]
        browser = Browser(api.port)
        assert "showed when it started" in browser.send("GET", "/login").words
        code = api.shown.partition("/login#")[2].partition(";")[0]
        assert use(browser, code).status == 303
        with Laneway(store) as app:
            token_id, text, _ = tokens.create(app.engine, "ops", ["read"])
        assert browser.send("GET", "/v1/topics").status == 200
    with serving(store, has_login=True) as (api, _):
        assert "login" not in api.shown
        browser = Browser(api.port)
        assert "showed when it started" not in browser.send("GET", "/login").words
        assert browser.send("POST", "/login", urlencode({"token": text})).status == 303
        with Laneway(store) as app:
            tokens.revoke(app.engine, token_id)
        assert Api(api.port).problem("GET", "/v1/topics", status=401)


def test_codes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A code ends after ten minutes, and when many newer ones wait."""
    logins = LocalLogin(KEY)
    codes = [logins.new_code() for _ in range(MAX_CODES + 1)]
    assert len(set(codes)) == len(codes)
    assert not logins.use_code(codes[0])
    assert logins.use_code(codes[1])
    monkeypatch.setattr(local_login, "CODE_SECONDS", 0.0)
    assert not logins.use_code(logins.new_code())
    assert not logins.use_code("\ud800")


def test_a_machine_that_does_not_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the system does not list connections, a code is enough."""
    monkeypatch.setattr(local_login, "_CONNECTIONS", tmp_path / "absent")
    logins = LocalLogin(KEY)
    with (
        Laneway(f"sqlite:///{tmp_path}/shop.db", durability="memory") as app,
        running(app, login=logins) as browser,
    ):
        assert use(browser, logins.new_code()).status == 303
