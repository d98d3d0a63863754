"""Who may import whom, what each package exports, and what starts without heavy libraries: read from the source."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fixstar

ROOT = Path(fixstar.__file__).parent

# A part may import only what stands below it. Parts of one row do not know each other.
LAYERS: list[set[str]] = [
    {"__main__"},
    {"cli"},
    {"service"},
    {"demo", "picture2d", "benchmarks"},
    {"workspace"},
    {"lifecycle"},
    {"scenarios"},
    {"training"},
    {"methods"},
    {"losses"},
    {"gallery"},
    {"evaluation"},
    {"data"},
    {"models"},
    {"kernels"},
    {"images", "geometry", "polytopes"},
    {"durable", "errors", "progress"},
    {""},  # fixstar itself: the version
]
HEIGHT = {part: len(LAYERS) - row for row, parts in enumerate(LAYERS) for part in parts}
FORBIDDEN = {"torchvision", "pickle", "dill", "joblib", "cloudpickle"}
CORE = {"torch", "numpy", "PIL", "safetensors", "rich", "typer"}  # what a bare GPU machine has at start
TRITON_MODULES = {"normed_convolutions", "simplex_rows"}  # of the kernels: imported when a GPU trains
WEB = {"fastapi", "starlette", "pydantic", "uvicorn", "prometheus_client", "httpx"}  # imported when a service starts
NAMES_TO_AVOID = {"utils", "helpers", "common", "misc", "util", "helper"}


def sources() -> Iterator[Path]:
    return (path for path in ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    name = path.relative_to(ROOT).parts[0]
    return "" if name == "__init__.py" else name.removesuffix(".py")


def imports(path: Path, only_at_start: bool = False) -> Iterator[tuple[str, int]]:
    """Modules that a file imports, with the line; ``only_at_start`` leaves out functions and TYPE_CHECKING blocks."""
    tree = ast.parse(path.read_text())
    for node in _walk(tree, only_at_start):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write absolute imports"
            yield node.module or "", node.lineno
            if node.module == "fixstar":
                yield from ((f"fixstar.{alias.name}", node.lineno) for alias in node.names)


def _walk(node: ast.AST, only_at_start: bool) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        lazy = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not (only_at_start and (lazy or typing)):
            yield from _walk(child, only_at_start)


def test_every_part_has_its_place_in_the_layers() -> None:
    assert {part_of(path) for path in sources()} <= HEIGHT.keys()


@pytest.mark.parametrize("path", sorted(sources()), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    here = part_of(path)
    for module, line in imports(path, only_at_start=here == ""):  # fixstar itself hands out names on demand
        if module == "fixstar" or module.startswith("fixstar."):
            there = module.split(".")[1] if "." in module else ""
            if there not in HEIGHT:  # a name of fixstar itself, such as __version__
                there = ""
            allowed = there == here or HEIGHT[there] < HEIGHT[here]
            assert allowed, f"{path.name}:{line}: {here or 'fixstar'} may not import {there}"


def test_the_test_sees_a_wrong_import(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def f():\n    from fixstar.cli import main\n")
    assert ("fixstar.cli", 2) in list(imports(wrong))
    assert ("fixstar.cli", 2) not in list(imports(wrong, only_at_start=True))
    assert HEIGHT["cli"] > HEIGHT["geometry"]


@pytest.mark.parametrize("path", sorted(sources()), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_forbidden_library_and_no_heavy_one_at_start(path: Path) -> None:
    assert not {module.split(".")[0] for module, _ in imports(path)} & FORBIDDEN
    outside = {module.split(".")[0] for module, _ in imports(path, only_at_start=True)}
    outside -= {"fixstar", "", *sys.stdlib_module_names}
    allowed = CORE | WEB if part_of(path) == "service" else CORE
    if part_of(path) == "kernels" and path.stem in TRITON_MODULES:
        allowed = allowed | {"triton"}
    assert outside <= allowed, f"import {outside - allowed} inside the function that needs it"


@pytest.mark.parametrize("part", ["geometry", "polytopes", "evaluation", "gallery", "images", "errors"])
def test_serving_parts_need_no_torch(part: str) -> None:
    code = f"import sys, fixstar.{part}; print(sorted({{'torch', 'matplotlib', 'transformers'}} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_the_command_line_starts_without_torch() -> None:
    code = "import sys, fixstar.cli; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def modules() -> list[str]:
    return [info.name for info in pkgutil.walk_packages([str(ROOT)], "fixstar.") if not info.name.endswith("__main__")]


@pytest.mark.parametrize("name", modules())
def test_exported_names_exist_and_are_stated(name: str) -> None:
    if name.rpartition(".")[2] in TRITON_MODULES:
        pytest.importorskip("triton", reason="needs Triton, which this system does not have")
    module = importlib.import_module(name)
    assert hasattr(module, "__all__"), f"{name} does not say what it exports"
    assert all(hasattr(module, exported) for exported in module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)


EXPORTED = {
    "fixstar": ["Encoder", "__version__"],
    "fixstar.geometry": [
        *("bridge", "carry", "full_form", "short_basis", "short_factors", "short_form"),
        *("simplex_constants", "simplex_logits", "simplex_prototypes", "unit"),
    ],
    "fixstar.polytopes": [
        *("cube_dimension", "cube_logits", "cube_prototypes", "orthoplex_logits", "orthoplex_prototypes"),
        *("polygon_logits", "polygon_prototypes"),
    ],
    "fixstar.images": ["MAX_PIXELS", "BadImage", "ImageSource", "Preprocessing", "decode_ahead", "read_pixels"],
    "fixstar.models": [
        *("Adapter", "Backbone", "Classifier", "CosineClassifier", "CubeClassifier", "Encoder", "FixedClassifier"),
        *("FrozenEncoder", "LinearClassifier", "OrthoplexClassifier", "Outputs", "PolygonClassifier"),
        *("ProxyClassifier", "SimplexClassifier", "Slots"),
        *("backbone_names", "create_backbone", "create_classifier"),
    ],
    "fixstar.data": [
        *("Augmentation", "Batch", "Batches", "ImageSet", "Lane", "ReplayMemory", "Task", "TaskStream"),
        *("class_and_sample_stream", "class_order", "class_stream", "concatenate", "from_arrays", "open_images"),
        *("pixel_source", "sample_stream"),
    ],
    "fixstar.evaluation": [
        *("MEASURES", "PROTOCOLS", "BackfillCurve", "CellEvidence", "ClassFlips", "CrossTest", "Difference"),
        *("Flips", "FoldAccuracy", "Found", "FoundRows", "LabelFile", "LostQuery", "MatrixSpread"),
        *("MeanAveragePrecision", "Pairs", "RateTable", "Report", "Split", "Spread", "Thumbnails"),
        *("VersionFeatures", "absolute_gain", "accuracy_curves", "accuracy_panels", "average_accuracy"),
        *("average_compatibility", "average_compatibility_accuracy", "average_precisions", "backfill_curve"),
        "backfill_curves",
        *("backward_compatibility", "cell_evidence", "cmc", "compatibility_heat_map", "compatible_cells"),
        *("contact_sheet", "cross_test", "cross_test_by", "cross_test_cmc", "cross_test_scores", "draw_pairs"),
        "flips",
        *("format_spread", "forward_compatibility", "found_before_after", "gallery_query_split", "image_search"),
        *("is_compatible", "kfold_accuracy", "knn_accuracy", "knn_classes", "knn_hits", "lost_queries"),
        *("mean_average_precision", "mean_templates", "metric_curve", "mixed_gallery_search", "mixed_nearest"),
        *("multi_model_compatible", "nearest", "open_set_hits", "pair_scores", "paired_bootstrap", "rank_hits"),
        *("read_features", "read_labels", "roc", "roc_curves", "sample_pairs", "side_by_side", "summarise"),
        *("summarise_matrices", "summary", "tar_at_far", "template_search", "templates", "threshold_at_far"),
        *("tpir_at_fpir", "update_gain", "verdicts"),
    ],
    "fixstar.methods": [
        *("METHODS", "Initialisation", "Method", "Need", "Objective", "OldVectors", "Scenario", "Stage", "Step"),
        *("Terms", "Upgrade", "create_method"),
    ],
    "fixstar.gallery": [
        *("Calibration", "Gallery", "Hit", "IndexState", "Item", "MemoryGallery", "PostgresGallery", "QdrantGallery"),
        *("SqliteGallery", "VersionSpace"),
        *("calibrated_search", "copy_gallery", "export_version", "fit_calibration", "import_version"),
        *("measured_recall", "open_gallery", "postgres_table", "qdrant_collection", "verify_gallery"),
    ],
    "fixstar.scenarios": [
        *("Past", "Settings", "Validation", "Version"),
        *("lifelong", "replacing", "retraining", "run_scenario", "train_version", "version_features"),
    ],
    "fixstar.lifecycle": [
        *("Answer", "Backfilled", "CatalogueItem", "Check", "CheckedCell", "Embedded", "Embedder", "GateRules"),
        *("ImageStore", "Indexed", "LocalEmbedder", "LostAnswer", "Move", "Registry", "Rollout", "Serving", "Usage"),
        *("catalogue", "check_version", "demand", "ensure_version", "held_out_images", "index_items"),
        *("keep_held_out", "labelled_items", "last_check", "run_backfill", "run_check", "save_check", "split_off"),
    ],
    "fixstar.workspace": [
        *("AdaptOptions", "Adapted", "BackfillOptions", "Status", "UpgradeOptions", "Workspace"),
    ],
    "fixstar.training": [
        *("CIFAR_CORES", "CIFAR_LIFELONG", "EpochLog", "Recipe", "Standing", "Training", "paper_recipe", "train"),
    ],
    "fixstar.losses": [
        *("SameClass", "balanced_distillation", "centre_alignment", "centre_distance", "cosine_boundary"),
        *("cross_entropy", "cross_model_triplet", "elastic_boundary", "feature_distance", "feature_distillation"),
        *("info_nce", "knowledge_distillation", "margin_ranking", "neighbourhood_components", "pooled_outputs"),
        "two_view_contrast",
    ],
}


@pytest.mark.parametrize("name", EXPORTED)
def test_public_names_change_only_on_purpose(name: str) -> None:
    assert importlib.import_module(name).__all__ == EXPORTED[name]


def test_names_say_what_things_are() -> None:
    parts = {part.removesuffix(".py") for path in sources() for part in path.relative_to(ROOT).parts}
    assert not parts & NAMES_TO_AVOID


def test_functions_and_files_stay_small() -> None:
    for path in sources():
        text = path.read_text()
        assert len(text.splitlines()) <= 300, f"{path} is long enough to hide a second idea"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                assert length <= 60, f"{path}:{node.lineno} {node.name} has {length} lines"
