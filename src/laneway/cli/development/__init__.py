"""`laneway dev`: the program, the gateway and a webhook receiver in one terminal."""
