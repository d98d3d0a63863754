"""The papers' experiments: benchmarks with printed figures, the theorem by Monte Carlo, the picture in two dimensions.

Nothing that stores, searches, checks or serves imports it; ``fixstar bench``, ``theorem`` and ``picture2d`` do. This
file imports nothing, so that the theorem is checked without torch.
"""

__all__: list[str] = []
