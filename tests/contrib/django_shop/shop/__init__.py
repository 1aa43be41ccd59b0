"""An app of a shop."""
