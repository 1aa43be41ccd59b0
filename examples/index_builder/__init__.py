"""A singleton that keeps a search index up to date, whichever of its processes lives."""
