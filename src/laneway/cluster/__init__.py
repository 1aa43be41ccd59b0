"""Coordination between processes: elections."""
