"""
Schedules: each is one message that is due at the next firing and then publishes its successor.
"""
