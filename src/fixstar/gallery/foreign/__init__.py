"""Vectors in collections and tables of other databases and in FAISS indexes: reading, and writing beside them.

    import_version(gallery, "clip", qdrant_collection("qdrant://localhost:6333", "photos"))
    import_version(gallery, "clip", postgres_table("postgresql://me@host/shop", "photos", "sku", "embedding"))
    import_version(gallery, "clip", faiss_index("photos.faiss"))

One file per store, with its reader (a ``VectorPlace``) and its target for the same items' vectors by another model (a
``Beside``). Sources are never changed. An import reads rows twice, to check everything before anything is stored, so
import while there are no writers. All ids are kept in memory, but vectors only one block at a time.
"""

from fixstar.gallery.foreign.chroma import chroma_collection
from fixstar.gallery.foreign.faiss import faiss_index
from fixstar.gallery.foreign.lance import lance_table
from fixstar.gallery.foreign.milvus import milvus_collection
from fixstar.gallery.foreign.postgres import postgres_table
from fixstar.gallery.foreign.qdrant import qdrant_collection

__all__ = [
    "chroma_collection",
    "faiss_index",
    "lance_table",
    "milvus_collection",
    "postgres_table",
    "qdrant_collection",
]
