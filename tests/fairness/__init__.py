"""
Random combinations of rules in virtual time: no topic starves, and no limit is exceeded.

- `cases`: random topics, tiers, groups, gates, limits and workers, drawn from a seed.
- `simulation`: runs a case on an engine, and counts what is above a limit.
- `judging`: compares what each topic got with its fair rate (`tests.model.fair_rates`).
- `running`: opens an engine for a case, and runs and judges it.

`python -m tests.fairness SEED` runs one case and shows what each topic got.
"""
