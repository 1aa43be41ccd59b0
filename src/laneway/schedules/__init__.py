"""
Calls that come back by the clock: each schedule is one message that is due when it fires next, and
makes its successor then.
"""
