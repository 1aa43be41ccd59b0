"""Functions that are called in the background: messages whose body is a call."""
