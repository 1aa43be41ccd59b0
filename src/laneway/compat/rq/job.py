"""The names of `rq.job` that there are here."""

from laneway.compat.rq import Dependency, Job, NoSuchJobError

__all__ = ["Dependency", "Job", "NoSuchJobError"]
