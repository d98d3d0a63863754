"""What happens to versions after training: registry, gate, rollout, serving, backfill, adapters."""

from fixstar.lifecycle.backfill import Backfilled, run_backfill
from fixstar.lifecycle.catalogue import CatalogueItem, ImageStore, catalogue, labelled_items
from fixstar.lifecycle.checks import Check, CheckedCell, LostAnswer, demand, last_check, save_check
from fixstar.lifecycle.embedding import Embedded, Embedder, LocalEmbedder, ensure_version
from fixstar.lifecycle.gate import GateRules, check_version, run_check
from fixstar.lifecycle.held_out import held_out_images, keep_held_out, split_off
from fixstar.lifecycle.indexing import Indexed, index_items
from fixstar.lifecycle.registry import Registry
from fixstar.lifecycle.rollout import Move, Rollout
from fixstar.lifecycle.serving import Answer, Serving
from fixstar.lifecycle.usage import Usage

__all__ = [
    "Answer",
    "Backfilled",
    "CatalogueItem",
    "Check",
    "CheckedCell",
    "Embedded",
    "Embedder",
    "GateRules",
    "ImageStore",
    "Indexed",
    "LocalEmbedder",
    "LostAnswer",
    "Move",
    "Registry",
    "Rollout",
    "Serving",
    "Usage",
    "catalogue",
    "check_version",
    "demand",
    "ensure_version",
    "held_out_images",
    "index_items",
    "keep_held_out",
    "labelled_items",
    "last_check",
    "run_backfill",
    "run_check",
    "save_check",
    "split_off",
]
