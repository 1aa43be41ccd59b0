"""What programs of Celery and RQ import instead: `fairlead.compat.celery`, `fairlead.compat.rq`. See docs/from-celery.md and docs/from-rq.md."""
