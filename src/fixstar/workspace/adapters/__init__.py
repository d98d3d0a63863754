"""Adapters: maps from one model's vectors to another's, where the two were not trained together."""

__all__: list[str] = []
