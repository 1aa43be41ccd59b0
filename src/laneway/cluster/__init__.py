"""Programs that act together: elections."""
