"""What all engines share, independent of any store: rules, arithmetic, names and sentences."""
