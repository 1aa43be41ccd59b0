"""Migrations: the tables of the outbox, and permissions."""
