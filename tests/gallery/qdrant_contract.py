"""The contract tests of galleries against your own Qdrant server.

    FIXSTAR_QDRANT_URL=http://localhost:6333 python tests/gallery/qdrant_contract.py

Without an address it tests nothing and says so. QDRANT_API_KEY is sent if it is set.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> int:
    """Run them; the exit code is pytest's."""
    if not os.environ.get("FIXSTAR_QDRANT_URL"):
        print("skipped: no server was tested. Set FIXSTAR_QDRANT_URL, such as http://localhost:6333")
        return 0
    import pytest

    return int(pytest.main([str(Path(__file__).parent), "-k", "qdrant", *sys.argv[1:]]))


if __name__ == "__main__":
    sys.exit(main())
