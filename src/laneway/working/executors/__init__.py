"""Where handlers run: on the event loop, in threads, in child processes."""
