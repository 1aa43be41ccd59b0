"""`Conf`: settings with Celery's names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from laneway.errors import UsageError

log = logging.getLogger("laneway.compat.celery")

DEFAULT_QUEUE = "celery"


class Conf:
    """
    `app.conf`: settings as attributes or items, by their new names or the old ones in capitals.
    """

    DEFAULTS: Mapping[str, Any] = {
        "broker_url": None,
        "result_backend": None,
        "timezone": None,
        "enable_utc": True,
        "beat_schedule": {},
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "result_expires": None,
        "task_time_limit": None,
        "task_soft_time_limit": None,
        "task_always_eager": False,
        "task_eager_propagates": False,
        "task_ignore_result": False,
        "task_default_queue": DEFAULT_QUEUE,
        "task_queues": None,
        "task_routes": None,
        "task_annotations": None,
        "task_default_rate_limit": None,
        "task_default_priority": None,
        "imports": (),
        "include": (),
        "worker_concurrency": None,
        "task_create_missing_queues": True,
        "task_track_started": False,
    }
    """Supported settings with their defaults."""

    IGNORED = frozenset(
        {
            "task_acks_late",
            "worker_prefetch_multiplier",
            "broker_connection_retry_on_startup",
            "broker_connection_retry",
            "broker_connection_max_retries",
            "worker_send_task_events",
            "task_send_sent_event",
            "result_extended",
            "worker_hijack_root_logger",
            "task_reject_on_worker_lost",
            "broker_heartbeat",
            "broker_pool_limit",
            "task_store_errors_even_if_ignored",
            "result_persistent",
            "worker_disable_rate_limits",
            "broker_transport_options",
            "result_backend_transport_options",
            "worker_log_format",
            "worker_task_log_format",
            "worker_redirect_stdouts",
            "worker_cancel_long_running_tasks_on_connection_loss",
            "redis_max_connections",
            "worker_max_tasks_per_child",
            "worker_pool",
            "result_accept_content",
            "task_default_exchange",
            "task_default_routing_key",
            "beat_scheduler",
            "beat_schedule_filename",
            "beat_max_loop_interval",
            "task_publish_retry",
            "task_publish_retry_policy",
            "event_queue_expires",
            "worker_proc_alive_timeout",
            "task_default_exchange_type",
            "task_default_delivery_mode",
            "result_compression",
            "task_compression",
        }
    )
    """Ignored settings: Laneway always does so, or has no such thing."""

    OLD: Mapping[str, str] = {
        "celerybeat_schedule": "beat_schedule",
        "celery_imports": "imports",
        "celery_include": "include",
        "celeryd_concurrency": "worker_concurrency",
        "celery_default_queue": "task_default_queue",
        "celery_queues": "task_queues",
        "celery_routes": "task_routes",
        "celery_annotations": "task_annotations",
        "celery_always_eager": "task_always_eager",
        "celery_eager_propagates_exceptions": "task_eager_propagates",
        "celery_ignore_result": "task_ignore_result",
        "celery_task_result_expires": "result_expires",
        "celeryd_task_time_limit": "task_time_limit",
        "celeryd_task_soft_time_limit": "task_soft_time_limit",
        "celery_default_rate_limit": "task_default_rate_limit",
        "celery_acks_late": "task_acks_late",
        "celeryd_prefetch_multiplier": "worker_prefetch_multiplier",
    }

    def __init__(self, changed: Callable[[str], object] = lambda _: None) -> None:
        self.__dict__["_values"] = dict(self.DEFAULTS)
        self.__dict__["_changed"] = changed

    def __getattr__(self, name: str) -> Any:
        values = self.__dict__["_values"]
        if self._present(name) in values:
            return values[self._present(name)]
        raise AttributeError(f"app.conf: there is no setting {name}")

    def _present(self, name: str) -> str:
        """The present name of a setting."""
        name = name.lower()
        short = name.removeprefix("celery_")
        return self.OLD.get(name, short if short in self.known() else name)

    def __setattr__(self, name: str, value: Any) -> None:
        name = self._present(name)
        if name in self.IGNORED:
            self._values[name] = value
            return
        if self._values.get(name) == value and name in self._values:
            return
        if name not in self.DEFAULTS:
            log.warning("app.conf: %s is not supported; it only has a value", name)
        if name in ("accept_content", "task_serializer", "result_serializer"):
            written = [value] if isinstance(value, str) else list(value)
            for each in written:
                if each not in ("json", "pickle", "msgpack", "application/json"):
                    raise UsageError(
                        f"app.conf: {name}: {each!r} is not supported; use json, msgpack or pickle"
                    )
        self._values[name] = value
        self._changed(name)

    def known(self) -> set[str]:
        """Names of the supported and the ignored settings."""
        return {*self.DEFAULTS, *self.IGNORED}

    __getitem__ = __getattr__
    __setitem__ = __setattr__

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a setting."""
        return self._values.get(self._present(name), default)

    def update(self, *settings: Mapping[str, Any], **more: Any) -> None:
        """Set several settings."""
        for each in (*settings, more):
            for name, value in each.items():
                self[name] = value
