"""How messages are handled: what a worker process is made of."""
