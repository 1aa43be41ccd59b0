"""The half-minute demonstration: `fairlead demo`. Every figure that it prints was measured in that run."""
