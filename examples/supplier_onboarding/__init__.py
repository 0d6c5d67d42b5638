"""The main example: suppliers from a CSV file are verified by mail, registered and told."""
