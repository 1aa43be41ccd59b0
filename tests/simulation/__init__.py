"""
Random fleets in virtual time: promises hold, whatever crashes, stops and gets lost.

`fleets` draws a fleet from a seed. `python -m tests.simulation SEED --engine model` runs one.
"""
