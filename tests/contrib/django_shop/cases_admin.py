"""Dead letters in the admin, and the dashboard under its login."""

from __future__ import annotations

import functools
import json
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.models import Permission, User
from django.test import Client, TestCase

from laneway.contrib.django import admin, app
from laneway.testing import virtual

LETTERS, DASHBOARD = "/admin/laneway/deadletter/", "/admin/laneway/dashboard/"
OWN = {"Sec-Fetch-Site": "same-origin"}


class Admin(TestCase):
    def setUp(self) -> None:
        world = virtual(app)
        world.__enter__()
        self.addCleanup(world.__exit__, None, None, None)
        self.addCleanup(admin._gateway.cache_clear)  # its pages are of this store
        self.ids = []
        for n in range(3):
            receipt = app.publish("orders.<b>", n, key="k")
            (delivery,) = app.lease(1)
            delivery.dead("no <i>account</i>")
            self.ids.append(receipt.id)

    def user(self, *permissions: str, is_superuser: bool = False) -> None:
        user = User.objects.create_user("ann", is_staff=True, is_superuser=is_superuser)
        user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
        self.client.force_login(user)

    def chosen(self, n: int) -> str:
        return json.dumps(["orders.<b>", self.ids[n]])


class DeadLetters(Admin):
    def test_a_list_and_a_letter(self) -> None:
        """Texts of messages are shown as texts; a list may be of one topic."""
        self.user("view_deadletter")
        page = self.client.get(LETTERS)
        self.assertContains(page, "<td>orders.&lt;b&gt;</td>", 3)
        self.assertNotContains(page, "<i>account")
        self.assertNotContains(page, "Redrive")
        assert self.client.get(LETTERS, {"topic": "other"}).context["letters"] == []
        found = app.dead_letters.list()[1]
        letter = self.client.get(f"{LETTERS}{found.number}/")
        self.assertContains(letter, "no &lt;i&gt;account")
        assert self.client.get(f"{LETTERS}{found.number + 999}/").status_code == 404
        assert self.client.get(LETTERS, {"topic": "a\n"}).status_code == 200

    def test_redrive_and_delete(self) -> None:
        """Deleting asks before."""
        self.user(is_superuser=True)
        form: dict[str, Any] = {"action": "redrive", "letter": [self.chosen(0)]}
        self.assertContains(self.client.post(LETTERS, form, follow=True), "1 put back")
        form = {"action": "delete", "letter": [self.chosen(1), self.chosen(2)]}
        self.assertContains(self.client.post(LETTERS, form), "Delete 2 dead letters?")
        assert len(app.dead_letters.list()) == 2
        done = self.client.post(LETTERS, form | {"confirmed": "yes"}, follow=True)
        self.assertContains(done, "2 deleted")
        assert app.dead_letters.list() == []

    def test_permissions(self) -> None:
        assert self.client.get(LETTERS).status_code == 302
        self.user("view_deadletter", "change_deadletter")
        form = {"action": "delete", "letter": [self.chosen(0)], "confirmed": "yes"}
        assert self.client.post(LETTERS, form).status_code == 403
        assert self.client.post(LETTERS, {"action": "wrong"}).status_code == 403
        assert self.client.post(LETTERS, form | {"action": "redrive"}).status_code == 302

    def test_pages(self) -> None:
        """After 50 letters there is a link to the later ones."""
        for n in range(50):
            app.publish("more", n)
        for delivery in app.lease(50):
            delivery.dead("why")
        self.user("view_deadletter")
        following = self.client.get(LETTERS).context["following"]
        assert len(self.client.get(LETTERS, {"after": following}).context["letters"]) == 3


class Dashboard(Admin):
    client_class = functools.partial(Client, enforce_csrf_checks=True)

    def act(self, **headers: str) -> int:
        form = urlencode({"topic": "orders.a", "back": DASHBOARD})
        kind = "application/x-www-form-urlencoded"
        path = f"{DASHBOARD}actions/pause"
        return int(self.client.post(path, form, content_type=kind, headers=headers).status_code)

    def test_pages_and_their_files(self) -> None:
        """Links lead to where it is mounted; the user's name is that of the caller."""
        self.user("view_dashboard")
        page = self.client.get(f"{DASHBOARD}topics")
        self.assertContains(page, f'href="{DASHBOARD}')
        self.assertContains(page, "ann")
        style = page.content.decode().partition('rel="stylesheet" href="')[2].partition('"')[0]
        assert self.client.get(style).status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert self.client.get(f"{DASHBOARD}nothing").status_code == 404

    def test_a_live_page(self) -> None:
        """It streams, and ends when the client goes."""
        self.user("view_dashboard")
        stream = self.client.get(f"{DASHBOARD}live", {"of": "/"})
        assert stream.headers["content-type"] == "text/event-stream"
        parts = stream._iterator  # closed as a server does it, but for the test's connection
        assert next(parts)
        parts.close()

    def test_permissions(self) -> None:
        """Who may only look changes nothing; a change comes from a page of the same origin."""
        assert self.client.get(DASHBOARD).status_code == 302
        self.user()
        assert self.client.get(DASHBOARD).status_code == 403
        User.objects.all().delete()
        self.user("view_dashboard")
        assert self.act(**OWN) == 303  # back to the page, which shows why not
        assert not app.engine.policy_of("orders.a").paused
        User.objects.all().delete()
        self.user("view_dashboard", "change_dashboard")
        assert self.act() == 403
        assert self.act(**{"Sec-Fetch-Site": "cross-site"}) == 403
        assert self.act(Origin="http://evil.example") == 403
        assert not app.engine.policy_of("orders.a").paused
        assert self.act(**OWN) == 303
        assert app.engine.policy_of("orders.a").paused

    def test_only_superusers_see_bodies_and_tokens(self) -> None:
        self.user("view_dashboard", "change_dashboard")
        assert self.client.get(f"{DASHBOARD}tokens").status_code == 403
        User.objects.all().delete()
        self.user(is_superuser=True)
        assert self.client.get(f"{DASHBOARD}tokens").status_code == 200

    async def test_asgi(self) -> None:
        """The same under a server of ASGI, with streams too."""
        user = await User.objects.acreate(username="bob", is_staff=True, is_superuser=True)
        await self.async_client.aforce_login(user)
        page = await self.async_client.get(f"{DASHBOARD}topics")
        self.assertContains(page, f'href="{DASHBOARD}')
        stream = await self.async_client.get(f"{DASHBOARD}live", {"of": "/"})
        parts = aiter(stream.streaming_content)
        assert await anext(parts)
        await parts.aclose()
