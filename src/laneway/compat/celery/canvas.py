"""The names of `celery.canvas`."""

from laneway.compat.celery import Signature, chain, chord, group, signature, subtask

__all__ = ["Signature", "chain", "chord", "group", "signature", "subtask"]
