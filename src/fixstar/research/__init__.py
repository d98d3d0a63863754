"""The papers' experiments: benchmarks with printed figures, the theorem by Monte Carlo, the picture in two dimensions.

Kernels that only the papers' networks can use are here too.

Only ``fixstar bench``, ``theorem`` and ``picture2d`` import it; code that stores, searches, checks or serves does not.
This file imports nothing, so that the theorem needs no torch.
"""

__all__: list[str] = []
