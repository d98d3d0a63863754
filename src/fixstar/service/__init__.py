"""A workspace behind HTTP: for programs (``/v1``) and for people (the page at ``/``). Needs the extra ``service``."""

__all__: list[str] = []
