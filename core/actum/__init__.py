"""Durable workflows that never guess."""
