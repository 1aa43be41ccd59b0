"""Publishing: from a message to the engine's receipt, one by one or in bulk."""
