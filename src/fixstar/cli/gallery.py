"""fixstar gallery: look after the stored vectors. Works on a workspace's gallery, or on any by its address."""

from __future__ import annotations

import typer

from fixstar.cli import gallery_files, gallery_images, gallery_items, gallery_place, gallery_state

__all__ = ["NAME", "app"]

NAME = "gallery"

app = typer.Typer(
    help="The stored vectors: count, verify, import, export, move to another store; images that nothing needs.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    epilog="Example:  fixstar gallery stats -w shop   |   fixstar gallery move postgresql://host/db -w shop",
)

for module in (gallery_state, gallery_items, gallery_files, gallery_place, gallery_images):
    for name, example in module.EXAMPLES.items():
        app.command(name, epilog=example)(module.COMMANDS[name])
