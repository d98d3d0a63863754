"""Print the section of CHANGELOG.md that belongs to a tag. Refuses a tag that is not the package's version.

python .ci/release_notes.py v0.2.0
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def version_of(source: str) -> str:
    """The version in the text of ``fixstar/__init__.py``."""
    found = re.search(r'(?m)^__version__ = "(.+)"$', source)
    if found is None:
        raise SystemExit("src/fixstar/__init__.py has no __version__")
    return found[1]


def section(changelog: str, version: str) -> str:
    """The text below the heading of a version, up to the next heading of a version."""
    _, heading, rest = changelog.partition(f"\n## {version}")
    if not heading:
        raise SystemExit(
            f"CHANGELOG.md has no section '## {version}'; rename 'Unreleased' and add the date"
        )
    body = rest.partition("\n## ")[0]
    return body.partition("\n")[2].strip()


def main(tag: str, root: Path) -> None:
    """Print the notes of a release."""
    version = version_of((root / "src" / "fixstar" / "__init__.py").read_text())
    if tag != f"v{version}":
        raise SystemExit(
            f"the tag is {tag} and the package's version {version}; they must be equal"
        )
    print(section((root / "CHANGELOG.md").read_text(), version))


if __name__ == "__main__":
    main(sys.argv[1], Path.cwd())
