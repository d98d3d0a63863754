"""Who may import whom, what each package exports, and what starts without heavy libraries: read from the source."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from source_statements import statements

import fixstar

ROOT = Path(fixstar.__file__).parent

# A part may import only what stands below it. Parts of one row do not know each other.
LAYERS: list[set[str]] = [
    {"__main__"},
    {"cli", "connectors"},
    {"service"},
    {"demo", "research"},
    {"workspace"},
    {"training"},
    {"methods"},
    {"losses"},
    {"translation"},
    {"gallery"},
    {"evaluation"},
    {"data"},
    {"models"},
    {"kernels"},
    {"images", "geometry", "polytopes", "texts"},
    {"versions"},
    {"trust"},
    {"durable"},
    {"errors", "options", "progress", "wording"},
    {""},  # fixstar itself: the version
]
HEIGHT = {part: len(LAYERS) - row for row, parts in enumerate(LAYERS) for part in parts}
FORBIDDEN = {"torchvision", "pickle", "dill", "joblib", "cloudpickle"}
CORE = {
    "torch",
    "numpy",
    "PIL",
    "safetensors",
    "rich",
    "typer",
}  # what a bare GPU machine has at start
TRITON_MODULES = {
    "normed_convolutions",
    "simplex_rows",
}  # kernels: imported when a GPU trains
WEB = {
    "fastapi",
    "starlette",
    "pydantic",
    "uvicorn",
    "prometheus_client",
    "httpx",
}  # imported when a service starts
CONNECTED = {"langchain": "langchain_core", "llama_index": "llama_index"}  # by module
RESEARCHERS = (
    "cli/bench.py",
    "cli/research.py",
    "research/",
)  # the only sources that import fixstar.research
NAMES_TO_AVOID = {"utils", "helpers", "common", "misc", "util", "helper"}


def sources() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def part_of(path: Path) -> str:
    name = path.relative_to(ROOT).parts[0]
    return "" if name == "__init__.py" else name.removesuffix(".py")


def module_of(path: Path) -> str:
    parts = ["fixstar", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, only_at_start: bool = False) -> Iterator[tuple[str, str, int]]:
    """What a file imports: module, name (empty for the module itself) and line.

    ``only_at_start`` leaves out functions and TYPE_CHECKING blocks.
    """
    for node, at_start in _import_nodes(path):
        if only_at_start and not at_start:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, "", node.lineno) for alias in node.names)
        else:
            assert node.level == 0, f"{path}:{node.lineno}: write absolute imports"
            yield from ((node.module or "", alias.name, node.lineno) for alias in node.names)


@cache
def _import_nodes(path: Path) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """The import statements of a file, and whether they are run when it is imported."""
    found, waiting = [], list[tuple[ast.AST, bool]]([(ast.parse(path.read_text()), True)])
    while waiting:
        node, at_start = waiting.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.append((node, at_start))
        elif not isinstance(node, ast.expr):  # an import is a statement
            lazy = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            at_start = at_start and not (lazy or typing)
            waiting += [(child, at_start) for child in ast.iter_child_nodes(node)]
    return sorted(found, key=lambda one: one[0].lineno)


def upward_imports(path: Path, here: str) -> list[str]:
    """The imports of a file that point to a part that is not below its own."""
    wrong = []
    for module, name, line in imports(
        path, only_at_start=here == ""
    ):  # fixstar itself hands out names on demand
        if module.split(".")[0] == "fixstar":
            there = f"{module}.{name}".split(".")[1]
            there = (
                there if there in HEIGHT else ""
            )  # a name of fixstar itself, such as __version__
            if there != here and HEIGHT[there] >= HEIGHT[here]:
                wrong.append(f"{path.name}:{line}: {here or 'fixstar'} may not import {there}")
    return wrong


def test_every_part_has_its_place_in_the_layers() -> None:
    assert {part_of(path) for path in sources()} <= HEIGHT.keys()


def test_imports_point_downwards() -> None:
    wrong = [line for path in sources() for line in upward_imports(path, part_of(path))]
    assert not wrong, "\n".join(wrong)


def test_a_wrong_import_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text("def f():\n    from fixstar.cli import main\n")
    assert upward_imports(path, "geometry") == ["wrong.py:2: geometry may not import cli"]
    assert not list(imports(path, only_at_start=True))


def research_imports(path: Path) -> list[str]:
    """The imports of fixstar.research in a file, those inside functions and for types too."""
    return [
        f"{path.name}:{line}: imports fixstar.research"
        for module, name, line in imports(path)
        if f"{module}.{name}.".startswith("fixstar.research.")
    ]


def test_the_product_never_imports_the_research(tmp_path: Path) -> None:
    wrong = []
    for path in sources():
        if not path.relative_to(ROOT).as_posix().startswith(RESEARCHERS):
            wrong += research_imports(path)
    assert not wrong, "\n".join(wrong)

    for line in (
        "from fixstar import research",
        "import fixstar.research.theorem",
        "from fixstar.research import a",
    ):
        path = tmp_path / "wrong.py"
        path.write_text(f"def f():\n    {line}\n")
        assert research_imports(path) == ["wrong.py:2: imports fixstar.research"]


def test_the_files_of_the_research_are_in_the_wheel() -> None:
    """What is read beside the code, and is no Python: the globs of pyproject.toml must cover it."""
    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text())
    shipped = {
        path
        for glob in project["tool"]["setuptools"]["package-data"]["fixstar"]
        for path in ROOT.glob(glob)
    }
    beside = {path for path in (ROOT / "research").rglob("*") if path.suffix in {".toml", ".json"}}
    assert len(beside) > 5
    assert beside <= shipped


def import_graph() -> dict[str, set[str]]:
    """Which modules of fixstar each of them imports when it is imported itself."""
    known = {module_of(path): path for path in sources()}
    graph: dict[str, set[str]] = {}
    for module, path in known.items():
        wanted = (
            (f"{there}.{name}", there) for there, name, _ in imports(path, only_at_start=True)
        )
        graph[module] = {
            full if full in known else there for full, there in wanted
        } & known.keys() - {module}
    return graph


def cycles(graph: dict[str, set[str]]) -> list[str]:
    """Import cycles, one for each module that closes one."""
    found, done = [], set[str]()

    def visit(module: str, way: list[str]) -> None:
        if module in way:
            found.append(" -> ".join([*way[way.index(module) :], module]))
        elif module not in done:
            for there in sorted(graph[module]):
                visit(there, [*way, module])
            done.add(module)

    for module in sorted(graph):
        visit(module, [])
    return found


def test_no_module_imports_itself_through_others() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b -> c -> b"]
    found = cycles(import_graph())
    assert not found, "\n".join(found)


def test_no_forbidden_library_and_no_heavy_one_at_start() -> None:
    wrong = []
    for path in sources():
        forbidden = {module.split(".")[0] for module, _, _ in imports(path)} & FORBIDDEN
        outside = {module.split(".")[0] for module, _, _ in imports(path, only_at_start=True)}
        outside -= {"fixstar", *sys.stdlib_module_names, *CORE}
        if part_of(path) == "service":
            outside -= WEB
        if part_of(path) in {"kernels", "research"} and path.stem in TRITON_MODULES:
            outside -= {"triton"}
        if part_of(path) == "connectors":
            outside -= {CONNECTED.get(path.stem, "")}
        wrong += [f"{path}: {library} is not used here" for library in forbidden]
        wrong += [
            f"{path}: import {library} inside the function that needs it" for library in outside
        ]
    assert not wrong, "\n".join(wrong)


def test_serving_parts_and_the_command_line_start_without_torch() -> None:
    parts = [
        "geometry",
        "polytopes",
        "evaluation",
        "gallery",
        "translation",
        "images",
        "errors",
        "options",
        "training.settings",
        "workspace.options",
        "cli",
    ]
    code = (
        "import importlib, sys\n"
        f"for part in {parts}:\n"
        "    importlib.import_module(f'fixstar.{part}')\n"
        "    heavy = {'torch', 'matplotlib', 'transformers'} & set(sys.modules)\n"
        "    if heavy: sys.exit(f'{part} imports {heavy}')\n"
    )
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert started.returncode == 0, started.stderr


def test_a_translation_is_read_and_scores_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np\n"
        "from fixstar.evaluation import VersionFeatures\n"
        "from fixstar.translation import Map, Translation, load_translation, save_translation, translated\n"
        "way = Translation('v1', 'v2', Map.linear(np.eye(3)), Map.linear(np.eye(3)), one=0.6)\n"
        f"way = load_translation(save_translation(way, {str(tmp_path / 'way.npz')!r}))\n"
        "one, two = (VersionFeatures(name, np.eye(3), np.eye(3)) for name in ('v1', 'v2'))\n"
        "seen = translated(way, one, two)\n"
        "assert np.allclose(seen.queries @ seen.gallery.T, np.eye(3))\n"
        "import fixstar.translation.bridge\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_workspace_is_made_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom fixstar.cli import app\n"
        f"app(['init', {str(tmp_path / 'shop')!r}], standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (made.returncode, "is ready" in made.stdout) == (0, True), made.stderr


def test_a_search_loads_no_training_code(tmp_path: Path) -> None:
    """Import, open, index, search, like, status: nothing of losses, methods or training."""
    folder = tmp_path / "shop"
    code = (
        "import sys, numpy as np\n"
        "from fixstar.models import Encoder\n"
        "from fixstar.workspace import CatalogueItem, Workspace\n"
        f"space = Workspace.create({str(folder)!r}, device='cpu')\n"
        "encoder = Encoder.create('tiny', classes=['a', 'b'], capacity=4)\n"
        "encoder.about = {'version': 'v1', 'parent': None}\n"
        f"encoder.save({str(folder / 'versions' / 'v1')!r})\n"
        "image = np.zeros((32, 32, 3), np.uint8)\n"
        "with space:\n"
        "    space.index([CatalogueItem('zero', image), CatalogueItem('white', image + 255)])\n"
        "    assert space.search([image], k=1).hits[0][0].id == 'zero'\n"
        "    space.like('zero')\n"
        "    space.status()\n"
        "parts = tuple(f'fixstar.{part}' for part in ('losses', 'methods', 'training', 'scenarios'))\n"
        "sys.exit(' '.join(name for name in sys.modules if name.startswith(parts)) or 0)\n"
    )
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert started.returncode == 0, started.stderr


def test_exported_names_exist_and_packages_state_them() -> None:
    wrong = []
    for name in map(module_of, sources()):
        needed = "triton" if name.rpartition(".")[2] in TRITON_MODULES else None
        if name.startswith("fixstar.connectors."):
            needed = CONNECTED.get(name.rpartition(".")[2])
        if name.endswith("__main__") or (needed and not find_spec(needed)):
            continue
        module = importlib.import_module(name)
        exported = getattr(module, "__all__", None)
        if exported is None:
            wrong += [f"{name} does not say what it exports"] if hasattr(module, "__path__") else []
        else:
            wrong += [f"{name} has no {word}" for word in exported if not hasattr(module, word)]
            wrong += [f"{name} exports a name twice"] if len(set(exported)) < len(exported) else []
    assert not wrong, "\n".join(wrong)


EXPORTED = {
    "fixstar": [
        "Encoder",
        "Preprocessing",
        "SimplexClassifier",
        "Workspace",
        "__version__",
        "bridge",
        "cross_test",
        "judge",
        "load_translation",
        "losses",
        "open_gallery",
        "train",
    ],
    "fixstar.geometry": [
        *("carry", "short_basis", "short_factors", "short_form"),
        *("simplex_constants", "simplex_logits", "unit"),
    ],
    "fixstar.polytopes": [
        *(
            "cube_dimension",
            "cube_logits",
            "orthoplex_logits",
            "polygon_logits",
            "polygon_prototypes",
        ),
    ],
    "fixstar.images": [
        *("MAX_PIXELS", "Decode", "DecodeProcesses", "ImageSource", "Pixels", "Preprocessing"),
        *("decode_ahead", "read_pixels"),
    ],
    "fixstar.models": [
        *(
            "Adapter",
            "Backbone",
            "Classifier",
            "CosineClassifier",
            "CubeClassifier",
            "EmbeddedBatch",
            "Encoder",
        ),
        *("FixedClassifier", "FrozenEncoder", "LinearClassifier", "OrthoplexClassifier", "Outputs"),
        *("PolygonClassifier", "ProxyClassifier", "SimplexClassifier", "Slots"),
        *("backbone_names", "create_backbone", "create_classifier", "resolve_device"),
    ],
    "fixstar.data": [
        *(
            "Augmentation",
            "Batch",
            "BatchSource",
            "Batches",
            "ImageSet",
            "ReplayMemory",
            "Task",
            "TaskStream",
        ),
        *(
            "augmented_views",
            "class_and_sample_stream",
            "class_order",
            "class_stream",
            "concatenate",
            "from_arrays",
        ),
        *("open_images", "pixel_source", "sample_stream"),
    ],
    "fixstar.evaluation": [
        *("MEASURES", "PROTOCOLS", "BackfillCurve", "CrossTest", "Difference"),
        *("Flips", "HitPicture"),
        *("RateTable", "Relevant", "Report", "Split", "Thumbnails", "VerificationPairs"),
        *("VersionFeatures", "accuracy_curves", "accuracy_panels", "average_accuracy"),
        *("average_compatibility", "average_compatibility_accuracy", "backfill_curve"),
        *(
            "backfill_curves",
            "backward_compatibility",
            "cell_evidence",
            "cmc",
            "compatibility_heat_map",
        ),
        *("compatible_cells", "contact_sheet", "cross_test", "cross_test_scores", "draw_pairs"),
        *(
            "flips",
            "format_spread",
            "forward_compatibility",
            "found_before_after",
            "gallery_query_split",
        ),
        *("is_compatible", "kfold_accuracy"),
        *(
            "lost_queries",
            "matched",
            "mean_average_precision",
            "metric_curve",
            "mixed_gallery_search",
        ),
        *("mixed_nearest", "ndcg", "nearest", "needed_resamples"),
        *(
            "pair_scores",
            "paired_bootstrap",
            "read_relevance",
            "recall",
            "reciprocal_rank",
            "retrieval_measure",
            "roc",
        ),
        "roc_curves",
        *(
            "sample_pairs",
            "side_by_side",
            "store_search",
            "summarise",
            "summarise_matrices",
            "summary",
        ),
        *("tar_at_far", "templates", "top_1", "tpir_at_fpir", "update_gain"),
        "verdicts",
    ],
    "fixstar.methods": [
        *(
            "METHODS",
            "Initialisation",
            "Method",
            "Need",
            "Objective",
            "OldVectors",
            "Scenario",
            "Stage",
            "Step",
        ),
        *("Terms", "Upgrade", "create_method"),
    ],
    "fixstar.gallery": [
        *(
            "Gallery",
            "Hit",
            "IndexState",
            "Item",
            "MemoryGallery",
            "MilvusGallery",
            "Payload",
            "PostgresGallery",
            "Question",
        ),
        *("SearchOptions", "SearchRequest", "SearchResult", "SqliteGallery", "Vectors"),
        *("VersionSpace", "Where"),
        *("copy_gallery", "export_version", "import_version"),
        *(
            "measured_recall",
            "open_gallery",
            "postgres_table",
            "qdrant_collection",
            "verify_gallery",
        ),
    ],
    "fixstar.translation": [
        *(
            "KINDS",
            "Calibration",
            "Evidence",
            "Layer",
            "Map",
            "Pairs",
            "Threshold",
            "Translation",
            "Uncertainty",
        ),
        *(
            "by_class",
            "by_relevance",
            "choose",
            "fit_calibration",
            "fit_map",
            "load_translation",
            "paired_by_class",
        ),
        *("pseudo_pairs", "save_translation", "translated"),
    ],
    "fixstar.workspace": [
        *(
            "BackfillOptions",
            "Backfilled",
            "CatalogueItem",
            "Check",
            "Examples",
            "FitOptions",
            "GateRules",
        ),
        *(
            "ImageStore",
            "Indexed",
            "Move",
            "Status",
            "UpgradeOptions",
            "Workspace",
            "catalogue",
            "labelled_items",
        ),
    ],
    "fixstar.training": [
        *(
            "CIFAR_CORES",
            "CIFAR_LIFELONG",
            "FROZEN",
            "EpochLog",
            "Recipe",
            "Settings",
            "Training",
            "TrainingContext",
        ),
        *("Validation", "ValidationScores", "Version", "paper_recipe"),
        *("run_scenario", "train", "train_version", "train_versions", "version_features"),
    ],
    "fixstar.losses": [
        *(
            "SameClass",
            "balanced_distillation",
            "centre_alignment",
            "centre_distance",
            "cosine_boundary",
        ),
        *(
            "cross_entropy",
            "cross_model_triplet",
            "elastic_boundary",
            "feature_distance",
            "feature_distillation",
        ),
        *(
            "info_nce",
            "info_nce_of",
            "knowledge_distillation",
            "margin_ranking",
            "neighbourhood_components",
            "pooled_outputs",
        ),
        *("search_contrast", "two_view_contrast"),
    ],
}


def test_public_names_change_only_on_purpose() -> None:
    for name, expected in EXPORTED.items():
        assert importlib.import_module(name).__all__ == expected, name


def test_names_say_what_things_are() -> None:
    parts = {
        part.removesuffix(".py") for path in sources() for part in path.relative_to(ROOT).parts
    }
    assert not parts & NAMES_TO_AVOID


def test_functions_stay_short() -> None:
    wrong = [
        f"{path}:{node.lineno} {node.name} has {length} lines below its signature"
        for path in sources()
        for node in statements(path)
        if isinstance(node, ast.FunctionDef)
        and (length := (node.end_lineno or 0) - node.body[0].lineno + 1) > 100
    ]
    assert not wrong, "\n".join(wrong)


MOST_CAUGHT = 4  # types in one clause


def wide_clauses(tree: ast.AST) -> list[int]:
    """Lines of ``except`` clauses that list more than ``MOST_CAUGHT`` types; a tuple with a name is one."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and isinstance(node.type, ast.Tuple)
        and len(node.type.elts) > MOST_CAUGHT
    ]


def test_no_clause_lists_five_types() -> None:
    """What a library raises at a border is a tuple with a name, or it is converted there."""
    clauses = "try: ...\nexcept (A, B, C, D, E): ...\nexcept (A, B, *C): ...\nexcept A: ..."
    assert wide_clauses(ast.parse(clauses)) == [2]
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: an except clause of five types or more"
        for path in sources()
        for line in wide_clauses(ast.parse(path.read_text()))
    ]
    assert not wrong, "\n".join(wrong)


FOLDER_OWNER = "versions.py"  # of versions/ and retired/


def numbers_by_hand(tree: ast.AST) -> list[int]:
    """Lines with ``int(name[1:])``: the number of a version, taken from its name."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "int"
        and re.fullmatch(r"int\(.*\[1:\]\)", ast.unparse(node))
    ]


def folders_by_hand(tree: ast.AST) -> list[int]:
    """Lines with ``path / "versions"`` or ``path / "retired"``."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and isinstance(node.right, ast.Constant)
        and node.right.value in ("versions", "retired")
    ]


def names_by_hand(tree: ast.AST) -> list[int]:
    """Lines with ``f"v{number}"``: the name of a version, made from its number."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        and len(node.values) == 2
        and isinstance(node.values[0], ast.Constant)
        and node.values[0].value == "v"
    ]


def test_one_file_alone_knows_the_order_and_the_folders_of_versions() -> None:
    assert numbers_by_hand(ast.parse("a = int(name[1:]) > int(one.target[1:])")) == [1, 1]
    assert sorted(
        folders_by_hand(ast.parse('a = path / "versions" / name\nb = path / "retired"'))
    ) == [1, 2]
    assert names_by_hand(ast.parse('a = f"v{number}"\nb = f"v{number} and {more}"')) == [1]
    wrong = []
    for path in sources():
        source = path.read_text()
        place = path.relative_to(ROOT).as_posix()
        if place == FOLDER_OWNER or not re.search(
            r"\[1:\]|[\"'](versions|retired)[\"']|f[\"']v{", source
        ):
            continue
        tree = ast.parse(source)
        wrong += [f"{place}:{line}: version_name says it" for line in names_by_hand(tree)]
        wrong += [
            f"{place}:{line}: version_number of fixstar.versions says it"
            for line in numbers_by_hand(tree)
        ]
        wrong += [
            f"{place}:{line}: VersionFiles says where it is" for line in folders_by_hand(tree)
        ]
    assert not wrong, "\n".join(wrong)


def test_training_and_registry_agree_where_a_version_is(tmp_path: Path) -> None:
    from fixstar.training.run_directory import RunDirectory
    from fixstar.workspace.registry import Registry

    assert RunDirectory(tmp_path).version(3) == Registry(tmp_path).directory("v3")
