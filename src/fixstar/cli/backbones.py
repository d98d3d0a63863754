"""fixstar backbones: what can carry an encoder."""

from __future__ import annotations

from fixstar.cli.options import AsJson, print_json

__all__ = ["EXAMPLES", "NAME", "command"]

NAME = "backbones"
EXAMPLES = "Example:  fixstar backbones --json"


def command(as_json: AsJson = False) -> None:
    """List the backbones by name."""
    from fixstar.models import backbone_names

    if as_json:
        print_json(backbone_names())
        return
    print("\n".join(backbone_names()))
    print("hf:NAME_OR_FOLDER   any vision model of transformers (needs the extra 'backbones')")
