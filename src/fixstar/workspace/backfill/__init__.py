"""Backfill: re-embed stored items with the deployed version, those that gain most first."""

__all__: list[str] = []
