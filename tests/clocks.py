"""Code for child processes whose clock is wrong."""

SHIFTED = """
import sys
import time

shift = float(sys.argv.pop(1))
real_time, real_time_ns = time.time, time.time_ns
time.time = lambda: real_time() + shift
time.time_ns = lambda: real_time_ns() + round(shift * 1e9)
"""
"""
Shifts `time.time` and `time.time_ns` by the seconds in the first argument.

It must run before any module that reads them is imported.
"""
