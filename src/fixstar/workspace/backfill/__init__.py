"""Backfill: stored items are embedded again with the deployed version, in an order that gains most first."""

__all__: list[str] = []
