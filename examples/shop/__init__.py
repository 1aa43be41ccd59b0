"""Orders and the messages about them, stored in one transaction."""
