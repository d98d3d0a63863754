"""A gallery on a Qdrant server or cluster. Needs the extra ``qdrant``, imported when one is opened."""

__all__: list[str] = []
