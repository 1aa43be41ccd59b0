"""
What programs of Celery and RQ import instead: `laneway.compat.celery`, `laneway.compat.rq`. See
docs/from-celery.md and docs/from-rq.md.
"""
