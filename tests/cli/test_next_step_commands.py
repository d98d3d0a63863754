"""Next steps are printed as commands that can be typed: the verb and its options exist, the workspace is filled in."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from shops import foreign, pictures, shop
from typed import parsed, typed

import fixstar
from fixstar.cli.next_steps import COMMANDS, command_of, next_lines, typed_workspace
from fixstar.errors import ACTIONS, NextStep
from fixstar.workspace import Check, Workspace, catalogue
from fixstar.workspace.checks import CheckedCell

SHOP = Path("my shop")
EXAMPLES = [
    (
        NextStep("check", {"version": "v2", "data": ...}),
        "fixstar check v2 --data LABELLED_IMAGES -w 'my shop'",
    ),
    (
        NextStep("deploy", {"version": "v2", "force": ...}),
        "fixstar deploy v2 --force \"REASON\" -w 'my shop'",
    ),
    (
        NextStep("backfill", {"budget": "all", "anyway": True}),
        "fixstar backfill --budget all --anyway -w 'my shop'",
    ),
    (
        NextStep("check", {"version": "v2", "pairs": ...}),
        "fixstar check v2 --pairs FILE.npz -w 'my shop'",
    ),
    (
        NextStep("deploy", {"version": "v2", "queries": "old"}),
        "fixstar deploy v2 --queries old -w 'my shop'",
    ),
    (NextStep("delete-items", {"id": "it's"}), "fixstar gallery delete 'it'\"'\"'s' -w 'my shop'"),
    (NextStep("init", {"path": ...}), "fixstar init WORKSPACE"),
    (NextStep("install", {"extra": "service"}), 'pip install "fixstar[service]"'),
]


@pytest.mark.parametrize(("step", "command"), EXAMPLES)
def test_steps_as_commands(step: NextStep, command: str) -> None:
    assert command_of(step, SHOP) == command
    assert (
        command_of(step, None) == command_of(step, Path()) == command.removesuffix(" -w 'my shop'")
    )


def test_a_repeated_command_keeps_what_was_typed_with_it() -> None:
    steps = [
        NextStep("check", {"version": "v2", "tolerance": 0.01}),
        NextStep("deploy", {"version": "v2"}, "or this"),
    ]
    assert next_lines(
        steps, None, "check", {"data": Path("old"), "split": "test", "seed": None}
    ) == [
        "Next: fixstar check v2 --tolerance 0.01 --data old --split test",
        "      fixstar deploy v2   # or this",
    ]
    again = NextStep("check", {"version": "v2", "data": ...})
    assert command_of(again, None, {"data": "old"}) == "fixstar check v2 --data LABELLED_IMAGES"


def test_the_workspace_of_a_command_line() -> None:
    for words in (["-w", "a"], ["--workspace", "a"], ["--workspace=a"], ["-wa"]):
        assert typed_workspace(["check", "v2", *words]) == Path("a")
    assert typed_workspace(["check", "v2"]) is None


def steps_in_source() -> Iterator[tuple[str, NextStep]]:
    """Every step that is written out in the source, its arguments replaced by a text that any option takes."""
    for path in Path(fixstar.__file__).parent.rglob("*.py"):
        source = path.read_text()
        if "NextStep(" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            if not (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "NextStep"
            ):
                continue
            action, *rest = [
                *node.args,
                *(word.value for word in node.keywords if word.arg == "arguments"),
            ]
            pairs = (
                zip(rest[0].keys, rest[0].values, strict=True)
                if rest and isinstance(rest[0], ast.Dict)
                else ()
            )
            arguments = {
                key.value if isinstance(key, ast.Constant) else None: ast.unparse(value) == "True"
                or "1"
                for key, value in pairs
            }
            if isinstance(action, ast.Constant) and None not in arguments:
                yield (
                    f"{path.name}:{node.lineno}",
                    NextStep(str(action.value), {str(k): v for k, v in arguments.items()}),
                )


def test_every_action_has_a_command_and_every_step_in_the_source_can_be_typed() -> None:
    assert COMMANDS.keys() == ACTIONS
    wrong = []
    table = (
        ("table", NextStep(action, dict.fromkeys([*command.positional, *command.options], "1")))
        for action, command in COMMANDS.items()
    )
    for where, step in (*table, *steps_in_source()):
        if step.action == "install":
            assert command_of(step) == 'pip install "fixstar[1]"'
            continue
        if step.action == "repeat":
            assert command_of(step).startswith("the same command with")
            continue
        try:
            shown = parsed(command_of(step, SHOP))
            assert shown.get("workspace", SHOP) == SHOP
        except Exception as error:
            wrong.append(f"{where}: {command_of(step, SHOP)}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("next-steps")
    with shop(folder / "shop") as space:
        space.index(catalogue(pictures(folder / "photos", 8)))
    return folder


def test_an_error_and_the_reasons_of_a_check(ready: Path, tmp_path: Path) -> None:
    path, photos = shutil.copytree(ready / "shop", tmp_path / "shop"), ready / "photos"
    refused = typed("deploy", "v2", "-w", path)
    assert "fixstar check v2" in refused.err
    shown = typed("check", "v2", "--data", photos, "--no-report", "-w", path)
    assert shown.code == 3, shown.out
    assert "fixstar check v2 --data LABELLED_IMAGES" in " ".join(shown.out.split())


def test_the_next_steps_for_vectors_that_nothing_connects(ready: Path, tmp_path: Path) -> None:
    path = shutil.copytree(ready / "shop", tmp_path / "shop")
    with Workspace(path, "cpu") as space:
        foreign(space, "old-system")
    shown = typed("check", "v1", "--data", ready / "photos", "-w", path)
    assert shown.code == 3, shown.out
    said = " ".join(shown.out.split())
    assert "nothing shows what v1's queries find among vectors of old-system" in said
    assert f"fixstar check v1 --pairs FILE.npz --data {ready / 'photos'} -w {path}" in said


def test_a_new_model_that_is_the_weaker_one_is_called_so(
    ready: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for own, told in ((0.4, True), (0.95, False)):
        cell = CheckedCell(
            "v1", 0.9, 0.5, -0.5, -0.3, "incompatible", 40, 40, 0, models=("v2",), reembedded=own
        )
        check = Check("v2", "refuse", ("it loses",), (cell,), own, 100, 100, 0.95, 0.0)
        monkeypatch.setattr(Workspace, "check", lambda *_, check=check, **__: check)
        shown = " ".join(typed("check", "v2", "-w", ready / "shop").out.split())
        assert ("v2 is no better than v1 here: keep v1" in shown) is told
