"""
The history of a namespace: what happened in each interval, by tier and policy pattern.

Engines count (`engines.base.history`). Every 10 s one of the workers, or who reads the history,
writes what was counted since the last time (`sampling`) into a bounded number of records
(`records`). `figures` reads them, and `alarms` compares them with limits.
"""
