"""The tests of galleries and of several services against your own PostgreSQL server, or through your pooler.

    FIXSTAR_POSTGRES_URL=postgresql://me@localhost:6432/test python tests/gallery/postgres_contract.py

Without an address it tests nothing and says so. The database needs pgvector, and the user must be allowed to create
schemas; those of the tests are called fixstar_test_... and removed at the end.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
CHOSEN = (
    "gallery/test_gallery_contract.py",
    "gallery/test_postgres_model.py",
    "service/test_shared.py",
)


def main() -> int:
    """Run them; the exit code is pytest's."""
    if not os.environ.get("FIXSTAR_POSTGRES_URL"):
        print(
            "skipped: no server was tested. Set FIXSTAR_POSTGRES_URL, such as postgresql://me@localhost:6432/test"
        )
        return 0
    import pytest

    return int(
        pytest.main(
            [*(str(TESTS / name) for name in CHOSEN), "-k", "postgres or shared", *sys.argv[1:]]
        )
    )


if __name__ == "__main__":
    sys.exit(main())
