"""A workspace inside other libraries: LangChain, LlamaIndex. Each has its own module and extra."""

__all__: list[str] = []
