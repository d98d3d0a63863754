"""A gallery on a PostgreSQL server with pgvector. Needs the extra ``postgres``, imported when one is opened."""

__all__: list[str] = []
