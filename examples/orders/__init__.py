"""Orders that pass their states one after the other, whatever fails meanwhile."""
