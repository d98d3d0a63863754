"""A comparison as text and pictures: cells of a table, complete sections of Markdown, matrices and curves."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from PIL import Image

from fixstar.evaluation import accuracy_panels, side_by_side
from fixstar.evaluation.compatibility import format_spread
from fixstar.evaluation.curves import COLOURS, accuracy_curves, metric_curve
from fixstar.research.benchmarks.comparison import Comparison, Line
from fixstar.research.benchmarks.plan import file_stem
from fixstar.research.benchmarks.published import Figure
from fixstar.research.benchmarks.result import METRICS, TRANSLATED, RunResult

_FRACTIONS = {
    "AC": 2,
    "BC": 3,
    "FC": 3,
}  # digits; the others are percent, as most tables print them
_NOTHING = "—"
_PALETTE = 64  # colours of a picture
_TRANSLATED = (
    "Old vectors translated. These rows see more than the tables above: they keep every older model, embed the images "
    "that a version was trained on with each (no other image), and fit a map from its vectors to the newest model's. "
    "With two models the older one also embeds every query:"
)
_SLERPS = "Queries by two models in older runs, the old and the new one's halfway on the great circle (slerp):"


def table_of(
    comparison: Comparison, columns: Sequence[str], protocols: Sequence[str | None] | None = None
) -> tuple[list[str], list[list[str]]]:
    """Head and rows: method, runs, the papers' figures (protocol None), and ours by protocol; the best are bold."""
    places = [
        (one, name)
        for one in protocols or (None, *comparison.benchmark.protocols)
        for name in columns
    ]
    lines = list(comparison.lines)
    if protocols is not None:
        lines = [line for line in lines if line.ours.keys() & set(protocols)]
    cells = [[_cell(comparison, line, *place) for place in places] for line in lines]
    kept = [i for i in range(len(places)) if any(row[i] != _NOTHING for row in cells)]
    head = [
        "method",
        "runs",
        "epochs",
        *(f"{places[i][0] or 'paper'}: {places[i][1]}" for i in kept),
    ]
    body = []
    for line, row in zip(lines, cells, strict=True):
        runs = [_NOTHING, _NOTHING]
        if line.runs:
            runs = [str(len(line.runs)), str(line.epochs)]
        body.append([line.label, *runs, *(row[i] for i in kept)])
    return head, body


def tables_of(comparison: Comparison) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """Title, head and rows: what the paper prints, what else was measured, translations, and slerps of older runs."""
    main = list(comparison.printed_columns)
    yield "", *table_of(comparison, main)
    rest = [name for name in comparison.columns if name not in main]
    if rest and any(line.runs for line in comparison.lines):
        yield "Also measured, not in the paper's table:", *table_of(comparison, rest)
    measured = dict.fromkeys(name for line in comparison.lines for name in line.ours)
    if translated := [name for name in measured if name.endswith(TRANSLATED)]:
        yield _TRANSLATED, *table_of(comparison, METRICS[:3], translated)
    if slerps := [
        name for name in measured if name.endswith(", two models") and name not in translated
    ]:
        yield _SLERPS, *table_of(comparison, METRICS[:3], slerps)


def figure_text(figure: Figure, column: str) -> str:
    """A published figure in the unit that ours has in this column, with its own digits.

    >>> from decimal import Decimal
    >>> figure_text(Figure(Decimal("0.62"), "fraction"), "AA"), figure_text(Figure(Decimal("0.86"), "fraction"), "AC")
    ('62', '0.86')
    """
    percent = column not in _FRACTIONS
    shift = 2 * (percent - (figure.unit == "percent"))
    deviation = None if figure.deviation is None else figure.deviation.scaleb(shift)
    return str(Figure(figure.printed.scaleb(shift), figure.unit, figure.below, deviation))


def markdown(
    comparison: Comparison,
    commands: Sequence[str] = (),
    pictures: Sequence[Path] = (),
    relative_to: Path | None = None,
) -> str:
    """A section: caption, ``commands`` that repeat the runs, tables, differences, and links to the pictures."""
    entry = comparison.benchmark
    runs = [run for line in comparison.lines for run in line.runs]
    parts = [f"## {entry.name}: {entry.title}", _caption(comparison, runs)]
    if commands:
        parts.append("```bash\n" + "\n".join(commands) + "\n```")
    for title, head, body in tables_of(comparison):
        if title:
            parts.append(title)
        lines = [f"| {' | '.join(row)} |" for row in (head, *body)]
        parts.append("\n".join([lines[0], f"|---{'|---:' * (len(head) - 1)}|", *lines[1:]]))
    parts += [
        "What differs from the paper:",
        "\n".join(f"- {line}" for line in what_differs(comparison)),
    ]
    for path in pictures:
        place = path
        if relative_to is not None:
            place = Path(os.path.relpath(path, relative_to))
        parts.append(f"![{path.stem}]({place.as_posix()})")
    return "\n\n".join(parts) + "\n"


def put_section(text: str, name: str, section: str) -> str:
    """The text with the section of a benchmark: its old section is replaced, a new one goes to the end.

    >>> print(put_section("words\\n", "a/2", "## a/2\\n"))
    words
    <BLANKLINE>
    <!-- a/2 -->
    ## a/2
    <!-- end of a/2 -->
    <BLANKLINE>
    """
    start = f"<!-- {name} -->\n"
    end = f"<!-- end of {name} -->\n"
    new = start + section + end
    if start in text and end in text.partition(start)[2]:
        before, _, rest = text.partition(start)
        return before + new + rest.partition(end)[2]
    if text:
        return f"{text}\n{new}"
    return new


def what_differs(comparison: Comparison) -> list[str]:
    """What the paper does not specify, and how our runs differ from its recipe, in sentences."""
    entry = comparison.benchmark
    lines = [line for line in comparison.lines if line.runs]
    found = []
    if entry.note:
        found.append(entry.note)
    if lines:
        averaged = f"means of {entry.paper_runs} runs" if entry.paper_runs > 1 else "single figures"
        found.append(f"The paper's are {averaged}; ours are means over {_means_over(lines)}.")
    whole = entry.recipe.epochs
    shorter = sorted({line.epochs for line in lines if line.epochs is not None} - {whole})
    found += [
        f"Epochs per version: {epochs} instead of {whole}, milestones in proportion."
        for epochs in shorter
    ]
    found += _settings(lines)
    found += _ours(comparison, lines)
    found += _not_judged(comparison, lines)
    found += _about_figures(comparison)
    absent = list(dict.fromkeys(line.method for line in comparison.lines if not line.runs))
    if absent:
        found.append(f"Not run here: {', '.join(absent)}.")
    return list(dict.fromkeys(found)) or ["Nothing that is known."]


def _settings(lines: Sequence[Line]) -> list[str]:
    """What was set instead of the paper's values, and which of it the paper varies too: a sentence each per method."""
    sentences: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        end = "instead of the paper's"
        if line.printed and line.printed.ablation:
            end = f"as in {line.printed.source}, whose figures are those printed here"
        words = sentences.setdefault((line.method, end), [])
        if line.special and (asked := ", ".join(line.special)) not in words:
            words.append(asked)
    return [
        f"{method}: {'; '.join(words)} {end}."
        for (method, end), words in sentences.items()
        if words
    ]


def _ours(comparison: Comparison, lines: Sequence[Line]) -> list[str]:
    """What our own settings of the catalogue are, where they were run."""
    found = []
    for method in dict.fromkeys(line.method for line in lines):
        if choice := comparison.benchmark.ours.get(method):
            words = ", ".join(f"{key}={value}" for key, value in choice.described().items())
            found.append(f"{method}: {choice.name} with {words}, a setting of ours.")
    return found


def _not_judged(comparison: Comparison, lines: Sequence[Line]) -> list[str]:
    """Which runs lack a protocol, because it was not measured yet when they were made."""
    found = []
    for protocol in comparison.benchmark.protocols:
        lacking = {
            line.label: sum(protocol not in run.protocols for run in line.runs) for line in lines
        }
        words = [f"{count} of {label}" for label, count in lacking.items() if count]
        if words:
            found.append(f"Runs that were not judged by {protocol}: {', '.join(words)}.")
    return found


def _means_over(lines: Sequence[Line]) -> str:
    """The class orders and seeds that most lines have, and then those of the others, by their labels."""
    groups: dict[str, list[str]] = {}
    for line in lines:
        orders, seeds = (
            {getattr(run, name) for run in line.runs} for name in ("class_order", "seed")
        )
        groups.setdefault(
            f"class orders ({_listed(orders)}) and seeds ({_listed(seeds)})", []
        ).append(line.label)
    usual, *others = sorted(groups, key=lambda what: -len(groups[what]))
    return "; ".join([usual, *(f"{what} for {_and(groups[what])}" for what in others)])


def _about_figures(comparison: Comparison) -> list[str]:
    printed = {
        line.label if line.printed.ablation else line.method: line.printed
        for line in comparison.lines
        if line.printed
    }
    doubtful = [
        f"{method} {name}" for method, entry in printed.items() for name in sorted(entry.uncertain)
    ]
    found = []
    if doubtful:
        found.append(
            f"Printed figures marked ? are hard to read or contradict their table: {', '.join(doubtful)}."
        )
    if any(entry.counted for entry in printed.values()):
        found.append("The paper's AC is counted from its marks of compatible pairs.")
    return found


def _cell(comparison: Comparison, line: Line, protocol: str | None, column: str) -> str:
    text = _printed(line, column) if protocol is None else _measured(line, protocol, column)
    if not text:
        return _NOTHING
    if comparison.is_best(line, protocol, column):
        return f"**{text}**"
    return text


def _caption(comparison: Comparison, runs: Sequence[RunResult]) -> str:
    entry = comparison.benchmark
    sources = sorted({line.printed.source for line in comparison.lines if line.printed}) or list(
        entry.sources
    )
    words = [
        f"Paper: {'; '.join(sources)}. AA, ACA and single cells in percent; the best of every column is bold."
    ]
    if runs:
        seconds = sum(run.seconds for run in runs) / len(runs)
        devices = sorted({run.device for run in runs})
        words.append(f"{len(runs)} runs, {seconds:,.0f} s each on average ({', '.join(devices)}).")
        words.append("Runs side by side take longer each.")
        words.append("± is the deviation of a single run.")
        if len({len(line.runs) for line in comparison.lines if line.runs}) > 1:
            words.append(
                f"Of ours, lines with {comparison.enough} or more runs are compared for the best."
            )
    return " ".join(words)


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _listed(numbers: set[int]) -> str:
    return ", ".join(str(number) for number in sorted(numbers))


def draw(comparison: Comparison, folder: str | Path) -> list[Path]:
    """Write the pictures of all runs; returns their paths. The AC above a mean matrix is that of the mean."""
    place = Path(folder)
    stem = file_stem(comparison.benchmark.name)
    place.mkdir(parents=True, exist_ok=True)
    drawn = []
    for protocol in comparison.benchmark.protocols:
        means = {
            _title(comparison, line): line for line in comparison.lines if protocol in line.matrices
        }
        if not means:
            continue
        drawn.append(place / f"{stem}__matrices__{protocol}.png")
        side_by_side({title: line.matrices[protocol] for title, line in means.items()}, drawn[-1])
        for metric in ("AA", "BC"):
            path = place / f"{stem}__{metric}__{protocol}.png"
            _draw_curves(means, protocol, metric, path, f"{comparison.benchmark.name}, {protocol}")
            drawn.append(path)
    for path in drawn:
        _reduce_colours(path)
    return drawn


def _reduce_colours(path: Path) -> None:
    """Give a picture of text and lines a palette, so that it takes a third of the space in a repository."""
    with Image.open(path) as picture:
        reduced = picture.convert("RGB").quantize(_PALETTE, dither=Image.Dither.NONE)
    reduced.save(path, optimize=True)


def _draw_curves(
    means: Mapping[str, Line], protocol: str, metric: str, path: Path, title: str
) -> None:
    curves = {name: metric_curve(line.matrices[protocol], metric) for name, line in means.items()}
    if len(curves) <= len(COLOURS):
        accuracy_curves(curves, path, metric=metric, title=title)
        return
    methods = dict.fromkeys(line.method for line in means.values())
    of_method = {
        m: {name: curves[name] for name, line in means.items() if line.method == m} for m in methods
    }
    accuracy_panels(of_method, path, metric=metric, title=title)


def _title(comparison: Comparison, line: Line) -> str:
    """The line's label, with its epochs where two lines differ in nothing else."""
    alone = sum(other.label == line.label for other in comparison.lines) == 1
    if alone:
        return line.label
    return f"{line.label}, e{line.epochs}"


def _printed(line: Line, column: str) -> str:
    """The paper's figure; one that is uncertain has a question mark."""
    if line.printed is None or column not in line.printed.values:
        return ""
    text = figure_text(line.printed.values[column], column)
    if column in line.printed.uncertain:
        text += "?"
    return text


def _measured(line: Line, protocol: str, column: str) -> str:
    """Our figure, over all runs."""
    spread = line.ours.get(protocol, {}).get(column)
    if spread is None:
        return ""
    digits = _FRACTIONS.get(column, 2)
    return format_spread(spread, percent=column not in _FRACTIONS, digits=digits)
