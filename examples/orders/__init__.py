"""Orders that go through their states one after the other, whatever fails meanwhile."""
