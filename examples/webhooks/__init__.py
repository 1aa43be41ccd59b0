"""A shop that tells its merchants of their orders, whatever their receivers do."""
