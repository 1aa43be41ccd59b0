"""
The history of a namespace: what happened in each interval, by tier and policy pattern.

Engines count (`engines.base.history`). Every 10 s a worker, or a reader of the history, writes the
counts since the last sample (`sampling`) into a bounded number of records (`records`). `figures`
reads them, and `alarms` compares them with limits.
"""
