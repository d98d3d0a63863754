"""The embedded gallery: one SQLite file, exact matrices in memory, an approximate index beside it."""

__all__: list[str] = []
