"""The rules of engines that keep their tables in a SQL database; each database has a `Store`."""
