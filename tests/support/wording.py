"""What fixstar says is kept in one file, ``tests/wording.json``, and not in the tests.

A test names the error that it expects and the next steps that it offers. The sentence must be the one in the file:

    with refuses(GateError, "check"):
        space.deploy("v2")

``pytest --update-wording tests/workspace`` writes what these tests are told now into the file, to be read as a diff.
So a sentence is improved in one place, and an error of the same type for another reason still fails the test.

Temporary folders, ports of this machine, hashes, times and long lists of names are written as ``<tmp>``, ``<port>`` and
so on. Whatever else differs between runs or machines, a test names as ``varies``: what a trained model finds, or the
words of a library.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tempfile
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import pytest

from fixstar.errors import NextStep

WORDING = "tests/wording.json"  # below the root of the repository
SECONDS = r"\d+(\.\d+)? s\b"  # how long something took
FIGURES = r"\d+\.\d+"  # what a trained model finds, which differs between processors
REASON = r"\(.*\)"  # that another library gives

Sentences = dict[str, list[str]]  # by the name of a test, in the order in which they are said
Error = TypeVar("Error", bound=BaseException)

_ALWAYS_VARIES = {
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?": "<time>",
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}": "<id>",
    r"(?<![^\W_])(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{8,}(?![^\W_])": "<hash>",
    r"(?<=127\.0\.0\.1:)\d+": "<port>",
    r"(?<=localhost:)\d+": "<port>",
    r"(?:[\w.+@=/:-]+, ){7,}[\w.+@=/:-]*\w": "<names>",  # of all methods, or formats
}


class Refusal(Generic[Error]):
    """An error that is expected; see ``refuses``. Not a generator: its frame would keep the error's frames alive."""

    def __init__(
        self, kind: type[Error] | tuple[type[Error], ...], actions: Sequence[str], varies: str
    ) -> None:
        self._raises = pytest.raises(kind)
        self._actions = actions
        self._varies = varies

    def __enter__(self) -> pytest.ExceptionInfo[Error]:
        return self._raises.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        __tracebackhide__ = True
        if not self._raises.__exit__(kind, error, traceback):
            return False
        steps: Sequence[NextStep] = getattr(error, "next_steps", ())
        if self._actions:
            assert [step.action for step in steps] == list(self._actions)
        check_wording(
            "\n".join([str(error), *(f"Next step: {step}" for step in steps)]), self._varies
        )
        return True


def refuses(
    kind: type[Error] | tuple[type[Error], ...], *actions: str, varies: str = ""
) -> Refusal[Error]:
    """Expects an error of this kind, whose next steps are these actions (if any are given), in the words of the file.

    ``varies`` is a regular expression; what it matches may differ.
    """
    return Refusal(kind, actions, varies)


def check_wording(text: str, varies: str = "") -> None:
    """Text must be the one in the file: the next of those that this test is told."""
    __tracebackhide__ = True
    if _session is None:
        raise RuntimeError("the wording is compared by pytest: run this test with it")
    _session.check(text, varies)


@dataclass
class Session:
    """One run of pytest, or one worker of it: what the file has, and what was said."""

    root: Path
    updates: bool
    partial: set[str] = field(default_factory=set)  # files of which only some tests run
    folder: Path | None = None  # of all temporary folders of this run
    test: str = ""  # that runs now
    said: list[str] = field(default_factory=list)  # in this test
    results: Sentences = field(default_factory=dict)  # of the tests that passed
    collected: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.kept = read_wording(self.root)

    def check(self, text: str, varies: str) -> None:
        __tracebackhide__ = True
        if not self.test:
            pytest.fail(
                "the wording is compared in a test, not in a fixture, which several tests may share"
            )
        now = normalised(text.replace(str(self.root), "<repository>"), varies, self.folder)
        self.said.append(now)
        if self.updates:
            return
        kept = self.kept.get(self.test, [])
        number = len(self.said)
        accept = f"Accept it with: pytest --update-wording '{self.test}'"
        if len(kept) < number:
            pytest.fail(
                f"no wording is kept for this (number {number} of this test):\n{now}\n\n{accept}"
            )
        was = kept[number - 1]
        if now != was:
            pytest.fail(
                f"it is said in other words (number {number} of this test):\n{compared(was, now)}\n\n{accept}"
            )

    def output(self) -> dict[str, Any]:
        """What a worker sends to the process that writes the file."""
        return {
            "results": self.results,
            "collected": sorted(self.collected),
            "partial": sorted(self.partial),
        }

    def add(self, output: dict[str, Any]) -> None:
        """What a worker sent."""
        self.results |= output["results"]
        self.collected |= set(output["collected"])
        self.partial |= set(output["partial"])

    def updated(self) -> Sentences:
        """The new content of the file. A test that failed or did not run keeps its entry; one that is gone does not."""
        whole = {file_of(test) for test in self.collected} - self.partial
        left = {
            test: sentences
            for test, sentences in self.kept.items()
            if (self.root / file_of(test)).exists()
            and (test in self.collected or file_of(test) not in whole)
        }
        return {test: sentences for test, sentences in (left | self.results).items() if sentences}


_session: Session | None = None


def normalised(text: str, varies: str = "", folder: Path | None = None) -> str:
    """Text with names for what differs between runs and machines.

    >>> normalised("127.0.0.1:43210 said at 2026-01-02T03:04:05Z that 0.31 s are too long", SECONDS)
    '127.0.0.1:<port> said at <time> that <...> are too long'
    """
    for parent in [folder, Path(tempfile.gettempdir())]:
        if parent is not None:
            for spelled in {str(parent), str(parent.resolve())}:
                text = re.sub(re.escape(spelled) + r"/[\w.-]+", "<tmp>", text)
    for pattern, name in _ALWAYS_VARIES.items():
        text = re.sub(pattern, name, text)
    if varies:
        text = re.sub(varies, "<...>", text)
    return text


def compared(was: str, now: str) -> str:
    """Both texts, line by line."""
    return "\n".join(
        line for line in difflib.ndiff(was.splitlines(), now.splitlines()) if line[0] in "-+ "
    )


def file_of(test: str) -> str:
    """The file of a test.

    >>> file_of("tests/test_docs.py::test_links[a::b]")
    'tests/test_docs.py'
    """
    return test.partition("::")[0]


def numbered(name: str) -> list[tuple[int, str]]:
    """To sort names with numbers in them as people do.

    >>> sorted(["b[10]", "b[9]", "a[11]"], key=numbered)
    ['a[11]', 'b[9]', 'b[10]']
    """
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


def read_wording(root: Path) -> Sentences:
    """The file's sentences by test. A text of several lines is a list there."""
    path = root / WORDING
    if not path.exists():
        return {}
    return {
        f"{file}::{test}": ["\n".join(text) if isinstance(text, list) else text for text in texts]
        for file, tests in json.loads(path.read_text(encoding="utf-8")).items()
        for test, texts in tests.items()
    }


def write_wording(root: Path, sentences: Sentences) -> None:
    """As ``read_wording`` reads it."""
    content = dict[str, dict[str, list[str | list[str]]]]()
    for name, texts in sorted(sentences.items(), key=lambda entry: numbered(entry[0])):
        file, _, test = name.partition("::")
        content.setdefault(file, {})[test] = [
            text.split("\n") if "\n" in text else text for text in texts
        ]
    (root / WORDING).write_text(
        json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-wording",
        action="store_true",
        help=f"write what tests are told into {WORDING}, compare nothing",
    )


def pytest_configure(config: pytest.Config) -> None:
    global _session
    named = {file_of(argument) for argument in config.args if "::" in argument}
    partial = {
        os.path.relpath(config.invocation_params.dir / file, config.rootpath) for file in named
    }
    _session = Session(
        root=config.rootpath, updates=config.getoption("update_wording"), partial=partial
    )


@pytest.fixture(scope="session", autouse=True)
def _temporary_folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert _session is not None
    _session.folder = tmp_path_factory.getbasetemp()


def pytest_deselected(items: Iterable[pytest.Item]) -> None:
    assert _session is not None
    _session.partial |= {file_of(item.nodeid) for item in items}


def pytest_collection_finish(session: pytest.Session) -> None:
    assert _session is not None
    _session.collected |= {item.nodeid for item in session.items}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    assert _session is not None
    _session.test = item.nodeid
    _session.said = []
    try:
        result = yield
        _session.results[item.nodeid] = _session.said
        return result
    finally:
        _session.test = ""


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended."""
    assert _session is not None
    if "wording" in getattr(node, "workeroutput", {}):
        _session.add(node.workeroutput["wording"])


def pytest_sessionfinish(session: pytest.Session) -> None:
    assert _session is not None
    if not _session.updates:
        return
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["wording"] = _session.output()
    else:
        write_wording(_session.root, _session.updated())
