"""What is on each page: a function for each that reads the engine and returns variables."""
