"""A polite crawler: every host is a topic."""
