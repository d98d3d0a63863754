"""A workspace inside other libraries: LangChain, LlamaIndex. Each has a module of its own, and an extra."""

__all__: list[str] = []
