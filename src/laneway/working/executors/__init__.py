"""Where handlers run: on the event loop, in threads, or in child processes that can be killed."""
