"""E-mail campaigns: thousands of them share the senders by class."""
