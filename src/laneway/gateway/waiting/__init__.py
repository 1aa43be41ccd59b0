"""Requests that wait: for messages, for jobs, and for events of the dashboard."""
