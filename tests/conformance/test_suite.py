"""The public conformance suite, on all our engines."""

from laneway.testing.conformance.suite import *  # noqa: F403  # as third parties do
