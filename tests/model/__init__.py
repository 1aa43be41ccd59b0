"""
The behaviour of an engine in plain Python without storage: docs/specification.md as a program.

Lists and dicts, sorted and scanned at every question; nothing is indexed, nothing is remembered
that could be worked out. It implements the protocol of `laneway.engines.base` (all that answers: it
does not wait, nor is it ill), so that `tests/stateful` can drive it and an engine with the same
random histories. The formulas (rates, virtual time, shares) and the resolution of policies are
shared with the engines; everything else is said here once more.

`things`: what there is · `lanes`: where it waits, and who may be served · `engine`: publish, lease,
settle · `desk`: administration.
"""

from tests.model.admin import Model

__all__ = ["Model"]
