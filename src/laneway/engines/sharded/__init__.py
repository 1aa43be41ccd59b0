"""
The client half of engines whose rules run in the server: one atomic call for each shard and batch.

`splitting`, `grants` and `merging` assume no server.
"""
