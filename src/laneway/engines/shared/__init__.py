"""What all engines have in common, free of any store: rules, arithmetic, names and sentences."""
