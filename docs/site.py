"""What mkdocs builds beside the written pages: the reference of commands, HTTP and Python, and the examples.

The build fails if a public name has no docstring, or if a page would load anything from elsewhere.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from fixstar import __version__

ROOT = Path(__file__).parents[1]
PYTHON = (
    "workspace",
    "gallery",
    "evaluation",
    "training",
    "methods",
    "losses",
    "models",
    "data",
    "images",
)
OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
_LOADED = re.compile(
    r'<(?:script|img|iframe|link (?![^>]*rel="(?:canonical|next|prev)"))[^>]*(?:src|href)="(?:https?:)?//'
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name the version that the pages describe."""
    config.site_name = f"fixstar {__version__}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {
        "reference/cli.md": commands(),
        "examples.md": examples(),
        **{target: (ROOT / source).read_text() for source, target in OUTSIDE.items()},
        **python_pages(),
    }
    pages["reference/http.md"], pages["reference/openapi.json"] = http()
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links to files of the repository at the pages made from them."""
    up = "../" * page.file.src_uri.count("/")
    if page.file.src_uri in OUTSIDE.values():
        markdown = re.sub(r"\]\(docs/", "](", markdown)
    for source, target in OUTSIDE.items():
        markdown = re.sub(rf"\]\((?:\.\./)*{re.escape(source)}", f"]({up}{target}", markdown)
    return re.sub(
        r"\]\((?:\.\./)*examples/(\w+)\.(?:py|ipynb|yml)\)",
        lambda found: f"]({up}examples.md#{found[1]})",
        markdown,
    )


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a page that loads a script, a font or a picture from elsewhere."""
    for path in Path(config.site_dir).rglob("*.html"):
        if found := _LOADED.search(path.read_text()):
            raise PluginError(f"{path}: loads something from elsewhere: {found[0]}...")


class Doctests(griffe.Extension):
    """Examples in docstrings are shown as code; Markdown would make quotations of them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the examples of one object."""
        if obj.docstring:
            obj.docstring.value = re.sub(
                r"(?m)^>>> .*(?:\n(?!\n).*)*",
                lambda found: f"```pycon\n{found[0]}\n```",
                obj.docstring.value,
            )


# --- Python


def python_pages() -> dict[str, str]:
    """One page per public package, with every name that it exports."""
    pages = {"reference/python/fixstar.md": python_page("fixstar")}
    for name in (*PYTHON, "errors"):
        pages[f"reference/python/{name}.md"] = python_page(f"fixstar.{name}")
    pages["reference/python/client.md"] = python_page("fixstar.service.client")
    return pages


def python_page(name: str) -> str:
    """What a module exports: ``__all__``, or its own classes and functions."""
    module = importlib.import_module(name)
    own = [
        key
        for key, value in vars(module).items()
        if getattr(value, "__module__", "") == name and key[0] != "_"
    ]
    lines = [f"# {name}", "", _docstring(module, name), ""]
    for exported in getattr(module, "__all__", own):
        value = getattr(module, exported)
        if inspect.ismodule(value) or exported.startswith("_"):
            continue
        if inspect.isclass(value) or inspect.isfunction(value):
            _docstring(value, f"{name}.{exported}")
            lines += [f"::: {value.__module__}.{value.__qualname__}", ""]
        else:
            lines += [f"## `{exported}`", "", f"A `{type(value).__name__}`.", ""]
    return "\n".join(lines)


def _docstring(value: object, name: str) -> str:
    text = inspect.getdoc(value)
    if not text:
        raise PluginError(f"{name} is public and has no docstring")
    return text.split("\n>>> ")[0]


# --- the command line


def commands() -> str:
    """Every command with its arguments and options, from what ``--help`` shows."""
    from typer.main import get_command

    from fixstar.cli import app

    lines = [
        "# Command line",
        "",
        "*Reference.* Every command has `--help`. Exit codes: 0 done or passed, 1 an error,",
    ]
    lines += [
        "2 refused, 3 missing evidence, 64 a mistake in the command line, 130 interrupted.",
        "",
    ]
    return "\n".join([*lines, *_command(get_command(app), "fixstar")])


def _command(command: Any, name: str) -> Iterator[str]:
    if hasattr(command, "commands"):
        if name != "fixstar":
            yield from (f"## {name}", "", inspect.cleandoc(command.help or ""), "")
        for key in command.list_commands(None):
            yield from _command(command.commands[key], f"{name} {key}")
        return
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join(
        [name, *(p.name.upper() if p.required else f"[{p.name.upper()}]" for p in arguments)]
    )
    yield from (f"{'#' * (len(name.split()))} {name}", "", inspect.cleandoc(command.help or ""), "")
    yield from ("```", f"{usage} [OPTIONS]", *_examples(command.epilog or ""), "```", "")
    if command.params:
        yield from ("| | | default |", "|---|---|---|")
    for p in command.params:
        word = (
            p.name.upper()
            if p.param_type_name == "argument"
            else ", ".join((*p.opts, *p.secondary_opts))
        )
        default = (
            "required"
            if p.required
            else ""
            if p.default is None or p.default is False or callable(p.default)
            else p.default
        )
        yield f"| `{word}` | {_cell(p.help or '')} | {_cell(str(default))} |"
    yield ""


def _examples(epilog: str) -> list[str]:
    return [line.strip() for line in epilog.splitlines() if line.startswith("  ")]


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")


# --- HTTP


def http() -> tuple[str, str]:
    """Every operation of the service, from its OpenAPI document; and the document."""
    from fixstar.service.app import create_app
    from fixstar.service.settings import ServiceSettings
    from fixstar.workspace import Workspace

    with tempfile.TemporaryDirectory() as folder, Workspace.create(Path(folder) / "empty") as space:
        document = create_app(space, ServiceSettings()).openapi()
    lines = ["# HTTP", "", "*Reference.* Made from the service's [OpenAPI document](openapi.json)."]
    lines += ["Limits, roles and problems: [the service](service.md).", ""]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            lines += [
                f"## {method.upper()} {path}",
                "",
                operation.get("description", operation["summary"]),
                "",
            ]
            lines += _fields(operation, document)
    return "\n".join(lines), json.dumps(document)


def _fields(operation: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    rows = [
        (
            p["name"],
            p["in"],
            _kind(p.get("schema", {})),
            p.get("description", ""),
            p.get("required", False),
        )
        for p in operation.get("parameters", [])
    ]
    for media, body in operation.get("requestBody", {}).get("content", {}).items():
        schema = _resolved(body["schema"], document)
        required = schema.get("required", [])
        rows += [
            (
                key,
                media.rpartition("/")[2],
                _kind(value),
                value.get("description", ""),
                key in required,
            )
            for key, value in schema.get("properties", {}).items()
        ]
    if rows:
        yield from ("| field | in | type | |", "|---|---|---|---|")
        for name, place, kind, text, required in rows:
            yield f"| `{name}`{' (required)' if required else ''} | {place} | {_cell(kind)} | {_cell(text)} |"
        yield ""
    for status, response in operation["responses"].items():
        for body in list(response.get("content", {}).values())[:1]:
            name = body.get("schema", {}).get("$ref", "").rpartition("/")[2]
            yield f"- **{status}** {_cell(response.get('description', ''))}{f': `{name}`' if name else ''}"
    yield ""


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref", "").rpartition("/")[2]
    found: dict[str, Any] = document["components"]["schemas"][reference] if reference else schema
    return found


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type", "any"))


# --- examples


def examples() -> str:
    """The programs, notebooks and workflows of examples/, as they are."""
    lines = [
        "# Examples",
        "",
        "*Reference.* They run in the tests as they are, and are under 60 lines each.",
        "",
    ]
    for path in sorted((ROOT / "examples").glob("*.*")):
        if path.suffix == ".py":
            lines += [f"## {path.stem}", "", "```python", path.read_text().rstrip(), "```", ""]
        elif path.suffix == ".yml":
            lines += [f"## {path.stem}", "", "```yaml", path.read_text().rstrip(), "```", ""]
        elif path.suffix == ".ipynb":
            lines += [f"## {path.stem}", "", f"A notebook: `examples/{path.name}`.", ""]
            for cell in json.loads(path.read_text())["cells"]:
                text = re.sub(r"(?m)^# ", "### ", "".join(cell["source"]))
                lines += (
                    [text, ""]
                    if cell["cell_type"] == "markdown"
                    else ["```python", "".join(cell["source"]), "```", ""]
                )
    return "\n".join(lines)
