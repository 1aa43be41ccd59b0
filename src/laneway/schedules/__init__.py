"""
Schedules: each is one message that is due when it fires next, and publishes its successor then.
"""
