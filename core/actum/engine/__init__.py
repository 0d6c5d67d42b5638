"""One leased turn of one Thread: load, replay, act, commit."""
