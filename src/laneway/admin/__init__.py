"""An operator's actions: inspect topics, redrive dead letters, copy policies between namespaces."""
