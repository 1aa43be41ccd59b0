"""
The half-minute demonstration: `laneway demo`. Every figure that it prints was measured in that run.
"""
