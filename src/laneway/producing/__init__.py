"""How messages get into an engine."""
