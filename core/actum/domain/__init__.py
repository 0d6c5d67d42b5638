"""What things mean: pure functions and values. No I/O, no clock, no SQL."""
