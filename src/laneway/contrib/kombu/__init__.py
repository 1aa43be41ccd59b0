"""
A transport of kombu, so that Celery itself runs on Laneway.

Importing this package makes `laneway+sqlite:///…`, `laneway+valkey://…` and
`laneway+postgres://…` URLs of brokers. docs/celery-on-laneway.md tells more.
"""

from kombu.transport import TRANSPORT_ALIASES

from laneway.contrib.kombu.transport import Transport

__all__ = ["Transport"]

TRANSPORT_ALIASES["laneway"] = "laneway.contrib.kombu:Transport"
