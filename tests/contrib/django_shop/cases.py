"""Run by Django's own test runner, see test_django.py."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
import threading
from unittest import mock

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, connections, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings

from laneway import BadMessage, Message, once
from laneway.contrib.django import app, application, outbox
from laneway.testing import eager, virtual
from tests.contrib.django_shop.shop.models import Order
from tests.contrib.django_shop.shop.tasks import amail, mail, mail_apart, opening
from tests.contrib.django_shop.shop.views import seen


class Tasks(TransactionTestCase):
    """Tasks that a worker runs."""

    def setUp(self) -> None:
        os.environ["SHOP_DATABASE"] = str(connection.settings_dict["NAME"])  # of child processes

    def order(self, customer: str = "acme") -> Order:
        return Order.objects.create(customer=customer)

    def test_a_worker_runs_tasks_that_use_models(self) -> None:
        """In its threads, on its event loop and in child processes, and handlers, too."""
        order = self.order()
        with virtual(app) as world:
            mailed, amailed = mail.delay("acme", order.id), amail.delay(order.id)
            mailed_apart = mail_apart.delay(order.id)
            app.publish("stock.pen", 1)
            summary = world.run(raising=True)
            assert summary.acked == 4
            first, second, (apart, pid) = mailed.get(), amailed.get(), mailed_apart.get()
        assert [first, second, apart] == ["acme"] * 3
        assert pid != os.getpid()
        order.refresh_from_db()
        assert order.mailed_by == "laneway-handler"
        assert Order.objects.filter(customer="stock.pen").count() == 1

    def test_connections_are_refreshed_around_runs(self) -> None:
        """A thread keeps no connection from one run to the next without CONN_MAX_AGE."""
        job = opening.delay()
        app.run_worker(burst=True, concurrency=1)
        assert app.job(job.get(0)).get(0) == []

    def test_transactions(self) -> None:
        """The outbox has what a transaction publishes, and nothing of one that rolls back."""
        self.client.raise_request_exception = False
        assert self.client.get("/order/", {"customer": "gone", "fails": 1}).status_code == 500
        assert self.client.get("/order/", {"customer": "stays"}).status_code == 200
        with connection.cursor() as cursor:
            cursor.execute("SELECT topic FROM laneway_outbox WHERE topic LIKE 'mail.%'")
            assert cursor.fetchall() == [("mail.stays",)]
        assert outbox() is connections["default"]

    def test_a_worker_forwards_from_the_database_of_the_test(self) -> None:
        """Not from the one that the setting names outside of tests."""
        ran = threading.Event()
        app.handler("stock.here")(lambda _: ran.set())
        app.publish("stock.here", 1, connection=connection)

        async def work() -> None:
            async with app.worker():
                await asyncio.to_thread(ran.wait, 30)

        asyncio.run(work())
        assert ran.is_set()

    def test_commands_of_databases(self) -> None:
        """`flush` empties the outbox, as after each test of this class; no dump has its rows."""
        app.publish("stock.pen", 1, connection=connection)
        assert once(connection, Message("stock.pen", id="1"))
        dump = io.StringIO()
        call_command("dumpdata", "--all", stdout=dump)
        assert "contenttypes" in dump.getvalue()
        assert "stock.pen" not in dump.getvalue()
        if "SHOP_HAS_NO_MIGRATIONS" not in os.environ:
            call_command("makemigrations", "laneway", "--check", "--dry-run", verbosity=0)
        call_command("flush", "--noinput", verbosity=0)
        with connection.cursor() as cursor:
            for table in ("laneway_outbox", "laneway_outbox_forwarder", "laneway_once"):
                cursor.execute(f"SELECT count(*) FROM {table}")
                assert cursor.fetchone() == (0,), table


class OnCommit(TestCase):
    """`delay_on_commit`, in a transaction that the test rolls back."""

    def test_delay_on_commit(self) -> None:
        with virtual(app) as world, self.captureOnCommitCallbacks(execute=True):
            mail.delay_on_commit("acme", 1)
            assert world.waiting() == []
            with transaction.atomic():
                mail.delay_on_commit("bolt", order=2)
        with virtual(app) as world:
            with self.captureOnCommitCallbacks(execute=True):
                mail.delay_on_commit("acme", 1)
            assert [message.topic for message in world.waiting()] == ["mail.acme"]

    def test_a_wrong_call_fails_at_the_call(self) -> None:
        with pytest.raises(BadMessage):
            mail.delay_on_commit("acme")  # type: ignore[call-arg]

    def test_eager(self) -> None:
        """A task that runs here uses the test's connection, which stays open."""
        order = Order.objects.create(customer="acme")
        with eager(app):
            mail.delay("acme", order.id)
        order.refresh_from_db()
        assert order.mailed_by == "MainThread"


class Settings(SimpleTestCase):
    """The setting LANEWAY."""

    def test_one_application(self) -> None:
        """The project has one; its policies are those of the setting; views may have tasks."""
        assert app is application.application()
        assert (app.program, app.url) == ("tests", os.environ["SHOP_QUEUE"])
        assert seen.name in {handler.name for handler in app.runtime.handlers}
        with virtual(app):
            assert app.engine.policy_of("mail.acme").rate == 1000

    def test_wrong_settings_are_errors_of_checks(self) -> None:
        for wrong, expected in (
            ([], "expected a dict"),
            ({"URI": "sqlite://"}, 'did you mean "URL"?'),
            ({"URL": 5}, "expected url"),
            ({"POLICIES": {"mail.*": {"rat": 5}}}, 'did you mean "rate"?'),
            ({"OUTBOX": "other"}, "other"),
        ):
            with (
                override_settings(LANEWAY=wrong),
                mock.patch.object(application, "_create", application._create.__wrapped__),
            ):
                (error,) = run_checks(tags=["laneway"])
                assert error.id == "laneway.E001"
                assert expected in error.msg, error.msg
        assert run_checks(tags=["laneway"]) == []


class Worker(TransactionTestCase):
    """`manage.py laneway_worker`."""

    def test_processes(self) -> None:
        """Worker processes set Django up first, and have the tasks of views."""
        order = Order.objects.create(customer="acme")
        connection.close()
        database = str(connection.settings_dict["NAME"])
        mailed, amailed, viewed = (
            mail.delay("acme", order.id),
            amail.delay(order.id),
            seen.delay(),
        )
        ran = subprocess.run(
            [sys.executable, "-m", "django", "laneway_worker", "--burst", "--processes", "2"],
            env={**os.environ, "SHOP_DATABASE": database},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert [mailed.get(0), amailed.get(0), viewed.get(0)] == ["acme", "acme", 5]

    def test_a_wrong_option_is_one_sentence(self) -> None:
        with self.assertRaisesMessage(CommandError, "concurrency"):
            call_command("laneway_worker", concurrency=0, burst=True)
