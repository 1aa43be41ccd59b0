"""What every engine does: the suite that ships for engines of other people, on our own."""

from laneway.testing.conformance.suite import *  # noqa: F403  # that is how it is used
