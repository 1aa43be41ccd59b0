"""Workers: lease messages, run their handlers, and settle them."""
