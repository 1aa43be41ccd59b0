"""Browser sessions: login, logout, and the attacks that they must withstand; pages and files."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest
import uvicorn

from laneway import Laneway
from laneway.gateway.extension import Extension, StaticFiles, html, page, redirect
from laneway.gateway.gateway import Gateway
from laneway.gateway.http import IMMUTABLE
from laneway.gateway.login import sessions, tokens
from laneway.gateway.login.access import Session
from laneway.gateway.login.shared_key import shared_key
from tests.gateway.conftest import Answer, Api
from tests.gateway.test_consume import wait_until

JSON = {"content-type": "application/json", "sec-fetch-site": "same-origin"}
FORM = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
OPEN_PAGE = {"accept": "text/html", "sec-fetch-mode": "navigate"}


class HelloQuery(msgspec.Struct, forbid_unknown_fields=True):
    name: str = "you"
    times: int = 1


class HelloForm(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    topics: list[str] = []
    count: int = 0


class Hello(Extension):
    """A package with two pages and a file."""

    def __init__(self, folder: Path) -> None:
        self.assets = StaticFiles("/static", folder)
        self.routes = (
            page("GET", "/hello", "read", self.show, query=HelloQuery),
            page("POST", "/hello", "operate", self.change, form=HelloForm),
            *self.assets.routes,
        )

    def show(self, call: Any) -> Any:
        """A page."""
        times = call.query.times
        return html(f"{escape(call.query.name) * times} {call.caller.name} {call.caller.csrf}")

    def change(self, call: Any) -> Any:
        """A form."""
        call.caller.check_topic(call.body.name)
        assert isinstance(call.body.count, int)
        return redirect(call.request.url(f"/hello?name={'-'.join(call.body.topics)}"))


@contextmanager
def running(app: Laneway, *extensions: Extension, prefix: str = "") -> Iterator[Api]:
    """A gateway in this process."""
    gateway = Gateway(app, prefix=prefix, extensions=extensions)
    config = uvicorn.Config(gateway, port=0, lifespan="off", ws="none", log_config=None)
    server = uvicorn.Server(config)
    thread = Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield Api(server.servers[0].sockets[0].getsockname()[1], prefix)
    finally:
        server.should_exit = True
        thread.join()
        gateway.close()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laneway]:
    with Laneway(f"sqlite:///{tmp_path_factory.mktemp('store')}/laneway.db") as app:
        yield app


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "vendor").mkdir()
    (folder / "style.css").write_text("p { margin: 0 }\n" * 100)
    (folder / "vendor" / "a.js").write_text("export const a = 1;\n")
    return folder


@pytest.fixture(scope="module")
def web(shop: Laneway, folder: Path) -> Iterator[Api]:
    tokens.create(shop.engine, "first", ["admin"])
    with running(shop, Hello(folder)) as api:
        yield api


def new_token(shop: Laneway, *scopes: str, **options: Any) -> tuple[str, str]:
    token_id, text, _ = tokens.create(shop.engine, "test", scopes or ("read",), **options)
    return token_id, text


def log_in(web: Api, token: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The header with the cookie of a new session, and the login's answer."""
    answer = web("POST", "/login", json.dumps({"token": token}).encode(), headers=JSON)
    return {"cookie": answer.headers["set-cookie"].partition(";")[0]}, answer.json


def at(header: dict[str, str], first: Api, second: Api) -> dict[str, str]:
    """The cookie of one gateway as another one knows it; a browser keeps those of ports apart."""
    return {"cookie": header["cookie"].replace(f"-{first.port}=", f"-{second.port}=")}


def visit(web: Api, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> Answer:
    """An answer of whatever status and type."""
    connection = web.open()
    try:
        connection.request(method, web.prefix + path, body, headers)
        return Answer(connection.getresponse())
    finally:
        connection.close()


def test_login(web: Api, shop: Laneway) -> None:
    """A token opens a session, whose cookie no script reads and no other site sends."""
    _, text = new_token(shop, "read", "operate", topics=["a.*"])
    answer = web("POST", "/login", {"token": text}, headers={"sec-fetch-site": "same-origin"})
    cookie = answer.headers["set-cookie"]
    assert cookie.endswith("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict")
    assert cookie.startswith(f"laneway-{web.port}=")
    assert text not in str(answer.headers) + str(answer.json)
    assert answer.json["scopes"] == ["operate", "read"]
    assert answer.json["topics"] == ["a.*"]
    headers = {"cookie": cookie.partition(";")[0]}
    assert web("GET", "/v1/topics", headers=headers).json["topics"] == []
    web.problem("GET", "/v1/topics/b", headers=headers, status=403)
    web.problem("GET", "/v1/tokens", headers=headers, status=403)
    web("POST", "/v1/topics/a.b/pause", headers={**headers, **JSON})
    web.problem("GET", "/v1/topics", status=401)


def test_login_by_form(web: Api, shop: Laneway) -> None:
    """The page's form leads to a path of the gateway, and to no other site."""
    _, text = new_token(shop)
    shown = visit(web, "GET", "/login?next=/hello%3Fname%3D%22x", OPEN_PAGE)
    assert shown.status == 200
    assert b'value="/hello?name=&quot;x"' in shown.content
    for following, leads_to in (
        ("/hello?name=x", "/hello?name=x"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("/%09/evil.example", "/"),
        ("https://evil.example", "/"),
        ("/a%0d%0aset-cookie:x=1", "/"),
        ("javascript:alert(1)", "/"),
        ("", "/"),
    ):
        body = f"token={text}&next={following}".encode()
        answer = visit(web, "POST", "/login", FORM, body)
        assert (answer.status, answer.headers["location"]) == (303, leads_to)
        assert "set-cookie" in answer.headers
    failed = visit(web, "POST", "/login", FORM, b"token=<script>&next=/hello")
    assert failed.status == 401
    assert b"the token is cut or mistyped" in failed.content
    assert b"<script>" not in failed.content
    assert b'value="/hello"' in failed.content
    assert "set-cookie" not in failed.headers


def test_login_of_another_site(web: Api, shop: Laneway) -> None:
    """A page of another site logs nobody in (to the attacker's account), nor out."""
    _, text = new_token(shop)
    cookie, _ = log_in(web, text)
    body = json.dumps({"token": text}).encode()
    for sent in (
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": f"http://localhost:{web.port}"},
    ):
        answer = visit(web, "POST", "/login", {**sent, "content-type": JSON["content-type"]}, body)
        assert (answer.status, "set-cookie" in answer.headers) == (403, False)
        assert visit(web, "POST", "/logout", {**sent, **cookie}).status == 403
    web("GET", "/v1/topics", headers=cookie)


def test_login_without_https(web: Api, shop: Laneway) -> None:
    """Without HTTPS only a browser of the machine itself logs in; with it the cookie is Secure."""
    _, text = new_token(shop)
    sent = {"host": "queue.example", "sec-fetch-site": "same-origin"}
    problem = web.problem("POST", "/login", {"token": text}, headers=sent, status=403)
    assert "--tls-certificate" in problem["detail"]
    secure = {"x-forwarded-proto": "https", "host": "queue.example", **JSON}  # uvicorn trusts us
    answer = web("POST", "/login", json.dumps({"token": text}).encode(), headers=secure)
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-laneway=")
    assert cookie.endswith("; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure")
    assert "Domain" not in cookie
    value = cookie.partition(";")[0]
    secure["cookie"] = value
    web("GET", "/v1/topics", headers=secure)
    # what a neighbor host could set, or what was set without HTTPS, is no session over HTTPS
    secure["cookie"] = value.removeprefix("__Host-")
    web.problem("GET", "/v1/topics", headers=secure, status=401)
    web.problem("GET", "/v1/topics", headers={"cookie": value}, status=401)


def test_brute_force_by_login(shop: Laneway, tmp_path: Path) -> None:
    """Ten bad logins within a minute are answered 429; a good token still logs in."""
    with Laneway(f"sqlite:///{tmp_path}/laneway.db") as app, running(app) as api:
        good = tokens.create(app.engine, "x", ["read"])[1]
        body = json.dumps({"token": "lw_x_y"}).encode()
        found = [visit(api, "POST", "/login", JSON, body).status for _ in range(11)]
        assert found == [401] * 10 + [429]
        assert visit(api, "POST", "/login", FORM, b"token=lw_x_y").status == 429
        assert visit(api, "POST", "/login", FORM, f"token={good}".encode()).status == 303


def forged(cookie: str, change: Any) -> dict[str, str]:
    name, _, value = cookie.partition("=")
    content = bytearray(base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)))
    change(content)
    return {"cookie": f"{name}={base64.urlsafe_b64encode(bytes(content)).decode().rstrip('=')}"}


def test_forged_cookies(web: Api, shop: Laneway) -> None:
    """A cookie whose session, token, times or signature were changed is none."""
    _, text = new_token(shop)
    cookie = log_in(web, text)[0]["cookie"]

    def flip(at: int) -> Any:
        def change(content: bytearray) -> None:
            content[at] ^= 1

        return change

    for at in (0, 16, 24, 39, 40, -1):
        web.problem("GET", "/v1/topics", headers=forged(cookie, flip(at)), status=401)
    for wrong in ("", "x", "=", cookie[8:-10], "\xff", "A" * 9000, "A" * 96):
        headers = {"cookie": f"laneway-{web.port}={wrong}"}
        web.problem("GET", "/v1/topics", headers=headers, status=401)
    web("GET", "/v1/topics", headers={"cookie": f"a=b; {cookie}; laneway2=x"})


def test_session_of_another_namespace(shop: Laneway, tmp_path: Path) -> None:
    """Its signature is of another key."""
    token_id, _ = new_token(shop)
    with Laneway(f"sqlite:///{tmp_path}/laneway.db") as other:
        now_s = int(time.time())
        session = Session("0" * 32, token_id, now_s, now_s, "")
        keys = [shared_key(app.engine, sessions.KEY) for app in (shop, other)]
        assert keys[0] != keys[1]
        assert shared_key(shop.engine, sessions.KEY) == keys[0]
        cookie = sessions.write(keys[0], session)
        assert sessions.read(keys[0], cookie) is not None
        assert sessions.read(keys[1], cookie) is None


def test_end_of_a_session(shop: Laneway) -> None:
    """A cookie ends after 12 hours, and all renewed ones 7 days after the login."""
    key, now_s = shared_key(shop.engine, sessions.KEY), int(time.time())

    def is_valid(login_s: int, renewed_s: int) -> bool:
        session = Session("0" * 32, "00000000", login_s, renewed_s, "")
        return sessions.read(key, sessions.write(key, session)) is not None

    assert is_valid(now_s - 11 * 3600, now_s - 11 * 3600)
    assert not is_valid(now_s - 12 * 3600, now_s - 12 * 3600)
    assert is_valid(now_s - 6 * 86_400, now_s)
    assert not is_valid(now_s - 7 * 86_400, now_s)


def test_renewed_cookie(web: Api, shop: Laneway) -> None:
    """A cookie that is older than an hour is replaced while it is used."""
    token_id, text = new_token(shop)
    fresh, _ = log_in(web, text)
    assert "set-cookie" not in web("GET", "/v1/topics", headers=fresh).headers
    key, now_s = shared_key(shop.engine, sessions.KEY), int(time.time())
    old = Session("1" * 32, token_id, now_s - 7200, now_s - 7200, "")
    headers = {"cookie": f"laneway-{web.port}={sessions.write(key, old)}"}
    renewed = web("GET", "/v1/topics", headers=headers).headers["set-cookie"]
    session = sessions.read(key, renewed.partition("=")[2].partition(";")[0])
    assert session is not None
    assert (session.id, session.token, session.login_s) == (old.id, token_id, old.login_s)
    assert session.renewed_s >= now_s
    web("GET", "/v1/topics", headers={"cookie": renewed.partition(";")[0]})


def change_token(shop: Laneway, token_id: str, **fields: Any) -> None:
    """Change a token's record, also while the gateway writes when it was last used."""
    is_stored = False
    while not is_stored:
        (stored,) = shop.engine.record_read("token", [token_id])
        changed = json.dumps({**json.loads(stored or b""), **fields}).encode()
        is_stored = shop.engine.record_swap("token", token_id, stored, changed)


def test_scopes_of_a_session(web: Api, shop: Laneway) -> None:
    """A session can do what its token can now; a revoked or expired token ends it."""
    token_id, text = new_token(shop, "read", "operate")
    cookie, _ = log_in(web, text)
    web("POST", "/v1/topics/a/pause", headers={**cookie, **JSON})
    change_token(shop, token_id, scopes=["read"])
    wait_until(lambda: visit(web, "POST", "/v1/topics/a/pause", {**cookie, **JSON}).status == 403)
    web("GET", "/v1/topics", headers=cookie)
    tokens.revoke(shop.engine, token_id)
    wait_until(lambda: visit(web, "GET", "/v1/topics", cookie).status == 401)
    token_id, brief = new_token(shop, expires=3600.0)
    cookie, _ = log_in(web, brief)
    web("GET", "/v1/topics", headers=cookie)
    change_token(shop, token_id, expires_us=time.time_ns() // 1000)
    wait_until(lambda: visit(web, "GET", "/v1/topics", cookie).status == 401)


def test_logout_ends_what_is_open(web: Api, shop: Laneway) -> None:
    """A page that is live shows nothing more."""
    _, text = new_token(shop)
    cookie, _ = log_in(web, text)
    connection = web.open()
    connection.request("GET", "/v1/events", headers=cookie)
    events = connection.getresponse()
    assert events.readline() == b"event: overview\n"
    web("POST", "/logout", b"{}", headers={**cookie, **JSON})
    assert events.read() is not None  # to its end
    connection.close()


def test_logout(web: Api, shop: Laneway, folder: Path) -> None:
    """It ends this session at every gateway, also for who copied the cookie, and no other one."""
    _, text = new_token(shop)
    cookie, login = log_in(web, text)
    other, _ = log_in(web, text)
    with running(shop, Hello(folder)) as second:
        there = at(cookie, web, second)
        second("GET", "/v1/topics", headers=there)
        wrong = visit(web, "POST", "/logout", {**cookie, **FORM}, b"csrf=x")
        assert wrong.status == 403
        answer = visit(web, "POST", "/logout", {**cookie, **FORM}, f"csrf={login['csrf']}".encode())
        assert (answer.status, answer.headers["location"]) == (303, "/login")
        assert answer.headers["set-cookie"].startswith(f"laneway-{web.port}=; Path=/; Max-Age=0;")
        web.problem("GET", "/v1/topics", headers=cookie, status=401)
        wait_until(lambda: visit(second, "GET", "/v1/topics", there).status == 401)
        second("GET", "/v1/topics", headers=at(other, web, second))
    assert visit(web, "POST", "/logout", {**cookie, **JSON}).status == 200
    assert visit(web, "POST", "/logout", {}).status == 200
    assert visit(web, "POST", "/logout", {**other, **JSON}).status == 200
    assert visit(web, "GET", "/v1/topics", other).status == 401
    shop.engine.record_swap("session", "0", None, b"1")  # of long ago
    other, _ = log_in(web, text)
    visit(web, "POST", "/logout", {**other, **JSON})
    assert "0" not in [name for name, _ in shop.engine.records("session")]


def test_changes_by_cookie(web: Api, shop: Laneway) -> None:
    """A change by a cookie is of the gateway's own page, and of a kind that no form can send."""
    _, text = new_token(shop, "operate", "publish", "read", "consume")
    cookie, _ = log_in(web, text)
    path, own = "/v1/topics/csrf/pause", f"http://127.0.0.1:{web.port}"
    json_type = {"content-type": "application/json"}
    for sent, status in (
        ({"sec-fetch-site": "same-origin", **json_type}, 200),
        ({"sec-fetch-site": "same-origin", "hx-request": "true"}, 200),
        ({"origin": own, **json_type}, 200),
        ({"sec-fetch-site": "cross-site", **json_type}, 403),
        ({"sec-fetch-site": "same-site", **json_type}, 403),
        ({"sec-fetch-site": "none", **json_type}, 403),
        ({"sec-fetch-site": "cross-site", "origin": own, **json_type}, 403),
        ({"origin": "null", **json_type}, 403),
        ({"origin": "http://127.0.0.1:1", **json_type}, 403),
        ({"origin": own + ".evil.example", **json_type}, 403),
        (json_type, 403),  # neither header: no browser of today
        ({"sec-fetch-site": "same-origin"}, 403),
        ({"sec-fetch-site": "same-origin", "content-type": "text/plain"}, 403),
        ({"sec-fetch-site": "same-origin", "content-type": FORM["content-type"]}, 403),
    ):
        assert visit(web, "POST", path, {**cookie, **sent}).status == status, sent
    web("POST", path, headers={"authorization": f"Bearer {text}", "origin": "https://a.example"})
    plain = {**cookie, "sec-fetch-site": "same-origin", "content-type": "text/plain"}
    assert visit(web, "POST", "/v1/topics/csrf/messages", plain, b"x").status == 403
    # a bad bearer token does not fall back to the cookie
    bad = {**cookie, **JSON, "authorization": "Bearer lw_x_y"}
    assert visit(web, "POST", path, bad).status == 401


def test_reads_by_cookie(web: Api, shop: Laneway) -> None:
    """Another site reads nothing with the cookie, nor leases; a link to a page may be followed."""
    _, text = new_token(shop, "read", "consume")
    cookie, _ = log_in(web, text)
    for site in ("cross-site", "same-site"):
        sent = {**cookie, "sec-fetch-site": site, "sec-fetch-mode": "navigate"}
        assert visit(web, "GET", "/v1/topics", sent).status == 403
        assert visit(web, "GET", "/hello", sent).status == 200
        assert visit(web, "GET", "/hello", {**sent, "sec-fetch-mode": "no-cors"}).status == 403
    stream = {**cookie, "sec-fetch-site": "none", "sec-fetch-mode": "navigate"}
    assert visit(web, "GET", "/v1/lease/stream", stream).status == 403
    assert visit(web, "GET", "/v1/topics", {**cookie, "sec-fetch-site": "none"}).status == 200


def test_pages(web: Api, shop: Laneway) -> None:
    """A page gets its query and its caller; without a session the browser is sent to the login."""
    _, text = new_token(shop)
    answer = visit(web, "GET", "/hello?name=x%26y", OPEN_PAGE)
    assert answer.status == 303
    assert answer.headers["location"] == "/login?next=%2Fhello%3Fname%3Dx%2526y"
    fragment = visit(web, "GET", "/hello", {"hx-request": "true", "accept": "text/html"})
    assert (fragment.status, fragment.headers["hx-redirect"]) == (401, "/login")
    assert visit(web, "GET", "/hello", {"accept": "text/event-stream"}).status == 401
    cookie, login = log_in(web, text)
    shown = visit(web, "GET", "/hello?name=%3Ca%3E&times=2", cookie)
    assert shown.content.decode() == f"&lt;a&gt;&lt;a&gt; test {login['csrf']}"
    assert shown.headers["cache-control"] == "no-store"
    policy = shown.headers["content-security-policy"]
    for part in ("default-src 'none'", "script-src 'self'", "form-action 'self'"):
        assert part in policy
    for part in ("frame-ancestors 'none'", "base-uri 'none'"):
        assert part in policy
    assert "unsafe" not in policy
    wrong = visit(web, "GET", "/hello?times=<b>", cookie)
    assert wrong.status == 400
    assert wrong.headers["content-type"] == "text/html; charset=utf-8"
    assert b"<b>" not in wrong.content
    assert "/hello" not in web("GET", "/openapi.json").json["paths"]
    missing = visit(web, "GET", "/nothing/<b>", OPEN_PAGE)
    assert missing.status == 404
    assert b"<h1>The resource does not exist</h1>" in missing.content
    api = Api(web.port, token=text)
    assert visit(web, "GET", "/hello", {"authorization": f"Bearer {text}"}).status == 200
    api.problem("POST", "/v1/nothing", status=404)


def test_forms(web: Api, shop: Laneway) -> None:
    """A plain form works with the session's field, and with no other one."""
    _, text = new_token(shop, "read", "operate", topics=["a"])
    (cookie, login), (_, other) = log_in(web, text), log_in(web, text)
    good = f"csrf={login['csrf']}&name=a&topics=x&topics=y&count=3".encode()
    answer = visit(web, "POST", "/hello", {**cookie, **FORM}, good)
    assert (answer.status, answer.headers["location"]) == (303, "/hello?name=x-y")
    one = f"csrf={login['csrf']}&name=a&topics=x".encode()
    assert visit(web, "POST", "/hello", {**cookie, **FORM}, one).status == 303
    htmx = {**cookie, **FORM, "hx-request": "true"}
    assert visit(web, "POST", "/hello", htmx, b"name=a").status == 303
    for body, status in (
        (b"name=a", 403),
        (b"name=a&csrf=", 403),
        (f"name=a&csrf={other['csrf']}".encode(), 403),
        ("name=a&csrf=ä".encode(), 400),
        (good.replace(b"name=a", b"name=b"), 403),
        (good + b"&name=a", 400),
        (good + b"&nmae=a", 400),
        (good.replace(b"count=3", b"count=x"), 400),
        (b"%ff=1", 400),
        (b"&".join(b"topics=x" for _ in range(2000)), 400),
        (b"name=" + b"a" * (2 << 20), 413),
    ):
        assert visit(web, "POST", "/hello", {**cookie, **FORM}, body).status == status, body[:80]
    for site in ("cross-site", "same-site"):
        sent = {**cookie, **FORM, "sec-fetch-site": site}
        assert visit(web, "POST", "/hello", sent, good).status == 403
    assert visit(web, "POST", "/hello", {**cookie, **JSON}, b'{"name": "a"}').status == 415
    admin = Api(web.port, token=new_token(shop, "admin")[1])
    change = admin("GET", "/v1/audit?limit=1").json["changes"][0]
    assert (change["path"], change["who"], change["request"]["name"]) == ("/hello", "test", "a")
    assert login["csrf"] not in str(change)


def test_static_files(web: Api, folder: Path) -> None:
    """Files have URLs that change with their content, and browsers keep them."""
    assets = StaticFiles("/static", folder)
    url = assets.url("style.css")
    sent = visit(web, "GET", url, {})
    assert sent.content == (folder / "style.css").read_bytes()
    assert sent.headers["cache-control"] == IMMUTABLE.decode()
    assert sent.headers["content-type"] == "text/css; charset=utf-8"
    packed = visit(web, "GET", url, {"accept-encoding": "gzip, br"})
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.content) < len(sent.content) / 5
    assert visit(web, "GET", assets.url("vendor/a.js"), {}).status == 200
    assert visit(web, "GET", f"{url}/../../../etc/passwd", {}).status == 404
    assert visit(web, "GET", "/static/0/style.css", {}).status == 404
    (folder / "vendor" / "a.js").write_text("export const a = 2;\n")
    assert StaticFiles("/static", folder).url("style.css") != url
    with pytest.raises(KeyError, match="no such file"):
        assets.url("../secret")


def test_pages_without_tokens(tmp_path: Path, folder: Path) -> None:
    """On a machine of one's own no login is needed, and another site can only link to a page."""
    with (
        Laneway(f"sqlite:///{tmp_path}/laneway.db") as app,
        running(app, Hello(folder), prefix="/queue") as api,
    ):
        same = {"sec-fetch-site": "same-origin", "content-type": FORM["content-type"]}
        assert visit(api, "GET", "/hello", OPEN_PAGE).status == 200
        answer = visit(api, "POST", "/hello", same, b"name=a")
        assert (answer.status, answer.headers["location"]) == (303, "/queue/hello?name=")
        other = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        assert visit(api, "GET", "/hello", other).status == 200
        for sent in (other, {"origin": "https://evil.example"}, {"origin": "null"}):
            form = {**sent, "content-type": FORM["content-type"]}
            assert visit(api, "POST", "/hello", form, b"name=a").status == 403
        assert visit(api, "GET", "/hello", {"host": "evil.example"}).status == 403
        tokens.create(app.engine, "x", ["read"])
        wait_until(lambda: visit(api, "GET", "/hello", OPEN_PAGE).status == 303)
        answer = visit(api, "GET", "/hello?name=x", OPEN_PAGE)
        assert answer.headers["location"] == "/queue/login?next=%2Fqueue%2Fhello%3Fname%3Dx"
