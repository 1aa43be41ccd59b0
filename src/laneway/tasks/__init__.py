"""Functions that are called in the background: the body of a message is a call."""
