"""The HTTP API: `laneway serve`, and `Laneway.asgi` for programs with a server of their own."""
