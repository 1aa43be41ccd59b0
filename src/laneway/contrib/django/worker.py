"""
The application with all its tasks, for processes that a worker starts, and for `laneway worker
laneway.contrib.django.worker:app`.

Django is set up, and its checks have imported the URLs, so tasks in modules of views are known.
"""

from django.core.checks import run_checks

from laneway.contrib.django import setup  # noqa: F401  # first
from laneway.contrib.django.application import application

run_checks()
app = application()
