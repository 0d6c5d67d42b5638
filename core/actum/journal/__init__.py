"""The only place with SQL. Lock order everywhere: `threads` rows by id, then `work` rows by id.

A claim locks `work` only (skipping what is locked), so no cycle is possible.
"""
