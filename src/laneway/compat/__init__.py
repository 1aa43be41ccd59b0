"""
APIs of Celery and RQ on Laneway: `laneway.compat.celery` and `laneway.compat.rq`.

A Celery or RQ program imports its names from here instead. docs/from-celery.md and
docs/from-rq.md list what is supported.
"""
