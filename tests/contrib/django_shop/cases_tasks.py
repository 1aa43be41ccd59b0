"""Django's tasks, run by Laneway's workers."""

from __future__ import annotations

from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import TransactionTestCase
from django.utils import timezone

from laneway.contrib.django import app
from laneway.contrib.django.backend import LIBRARY, DoesNotExist
from laneway.testing import virtual
from tests.contrib.django_shop.shop.background import acount, count, flaky, watched
from tests.contrib.django_shop.shop.models import Order

signals: Any = import_module(f"{LIBRARY}.signals")
backends: Any = import_module(LIBRARY).task_backends


class Backend(TransactionTestCase):
    def setUp(self) -> None:
        Order.objects.create(customer="acme")
        world = virtual(app)
        self.world = world.__enter__()
        self.addCleanup(world.__exit__, None, None, None)
        self.states: list[str] = []
        for signal in (signals.task_enqueued, signals.task_started, signals.task_finished):
            signal.connect(self.seen)
            self.addCleanup(signal.disconnect, self.seen)

    def seen(self, task_result: Any, **_: Any) -> None:
        self.states.append(str(task_result.status))

    def test_from_enqueue_to_the_result(self) -> None:
        """A waiting task is READY with its arguments; its result is there for each process."""
        result = count.using(queue_name="any", priority=7).enqueue("acme", "bolt")
        found = count.get_result(result.id)
        assert (found, str(found.status), found.args) == (result, "READY", ["acme", "bolt"])
        assert (found.task.queue_name, found.task.priority) == ("any", 7)
        assert [each.topic for each in self.world.waiting()] == ["django.any"]
        self.world.run(raising=True)
        result.refresh()
        assert (result.is_finished, result.return_value, result.attempts) == (True, 1, 1)
        assert result.enqueued_at <= result.started_at <= result.finished_at
        assert self.states == ["READY", "RUNNING", "SUCCESSFUL"]

    def test_coroutines(self) -> None:
        """They run on the event loop, with Django's asynchronous ORM."""
        result = acount.enqueue("acme")
        self.world.run(raising=True)
        result.refresh()
        assert result.return_value == [result.id, 1, 1]

    def test_a_running_task(self) -> None:
        """Its status is RUNNING for others."""
        result = watched.enqueue()
        self.world.run(raising=True)
        result.refresh()
        assert result.return_value == "RUNNING"

    def test_a_failed_task_is_a_dead_letter(self) -> None:
        """It is not tried again, as with Django's other backends, and has its error."""
        result = flaky.enqueue(5)
        self.world.run_all()
        result.refresh()
        assert (str(result.status), result.attempts) == ("FAILED", 1)
        assert result.finished_at is not None
        (error,) = result.errors
        assert error.exception_class is LookupError
        assert error.traceback.endswith("LookupError: attempt 1\n")
        assert [letter.message.id for letter in app.dead_letters.list()] == [result.id]
        assert self.states[-1] == "FAILED"

    def test_retries(self) -> None:
        """With a policy a task is tried again: READY in between, with the errors so far."""
        app.policy("django.patient", retries=2)
        one, two = (flaky.using(queue_name="patient").enqueue(n) for n in (1, 5))
        self.world.run()
        one.refresh()
        assert (str(one.status), one.attempts, len(one.errors)) == ("READY", 1, 1)
        self.world.run_all()
        one.refresh()
        two.refresh()
        assert (one.return_value, one.attempts, len(one.errors)) == (2, 2, 1)
        assert (str(two.status), two.attempts, len(two.errors)) == ("FAILED", 3, 3)
        assert self.states.count("FAILED") == self.states.count("SUCCESSFUL") == 1

    def test_a_task_that_never_ran_has_failed(self) -> None:
        """A dead letter without an error of the task's own says why."""
        app.policy("django.brief", ttl="1m")
        result = count.using(queue_name="brief").enqueue("acme")
        self.world.later("2m")
        self.world.run()
        result.refresh()
        assert (str(result.status), result.attempts) == ("FAILED", 0)
        assert "expired" in result.errors[0].traceback

    def test_run_after(self) -> None:
        """A deferred task waits in the store."""
        later = timezone.now() + timedelta(hours=2)
        result = count.using(run_after=later).enqueue("acme")
        self.world.run()
        assert count.get_result(result.id).task.run_after == later
        self.world.later("3h")
        self.world.run(raising=True)
        assert count.get_result(result.id).return_value == 1

    def test_other_ids(self) -> None:
        """Neither an unknown id nor one of another task is a result."""
        other = app.publish("other", ["args"]).id
        for wrong in ("123", other):
            with pytest.raises(DoesNotExist):
                backends["default"].get_result(wrong)

    def test_the_outbox(self) -> None:
        """With the option, a task exists if its transaction commits."""
        outbox = count.using(backend="outbox")
        with transaction.atomic():
            outbox.enqueue("acme")
            transaction.set_rollback(True)
        result = outbox.enqueue("acme")
        assert self.world.waiting() == []
        with connection.cursor() as cursor:
            cursor.execute("SELECT message_id FROM laneway_outbox WHERE topic LIKE 'django.%'")
            assert cursor.fetchall() == [(result.id,)]

    def test_checks(self) -> None:
        """Unknown options are errors."""
        backend = backends["default"]
        assert list(backend.check()) == []
        wrong = type(backend)("wrong", {"OPTIONS": {"RETRIES": 5}})
        assert [error.id for error in wrong.check()] == ["laneway.E003"]
