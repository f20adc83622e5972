"""The accuracy tables (`sweeps.tables`) as Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Callable

import pandas as pd

from mixerlab.sweeps.intervals import interval
from mixerlab.sweeps.markup import escape_latex, escape_markdown, no_formula, one_line
from mixerlab.sweeps.tables import AVERAGE, Score, Table, best_of, text_of


def to_markdown(table: Table) -> str:
    """The table with the best entries of each row (`best_of`) in bold, columns aligned, and the notes as a list."""
    return _aligned(table, escape_markdown)


def to_text(table: Table) -> str:
    """As `to_markdown`, for a terminal: names stay as they are, such as `mixer.layers=[attn,gdn]`."""
    return _aligned(table, one_line)


def _aligned(table: Table, shown: Callable[[str], str]) -> str:
    header = [*table.labels, *table.mixers]
    lines = [[shown(label) for label in header]]
    for name, row in table.rows.items():
        best = best_of(row)
        entries = [f"**{text_of(row[m])}**" if m in best else text_of(row[m]) for m in table.mixers]
        lines.append([*map(shown, name), *entries])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = len(table.labels)
    ruler = ["-" * width if i < left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    rendered = []
    for line in (lines[0], ruler, *lines[1:]):
        cells = [
            text.ljust(width) if i < left else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        rendered.append(f"| {' | '.join(cells)} |")
    notes = [f"- {shown(note)}" for note in table.notes]
    return "\n".join([*rendered, *([""] if notes else []), *notes]) + "\n"


def to_latex(table: Table) -> str:
    """A `tabular` for the booktabs package, best entries bold, with the notes as comments."""
    columns = "l" * len(table.labels) + "r" * len(table.mixers)
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    lines += [" & ".join(map(escape_latex, (*table.labels, *table.mixers))) + r" \\", r"\midrule"]
    for name, row in table.rows.items():
        best = best_of(row)
        if name == (AVERAGE,):
            lines.append(r"\midrule")
        entries = [rf"\textbf{{{_latex(row[m])}}}" if m in best else _latex(row[m]) for m in table.mixers]
        lines.append(" & ".join([*map(escape_latex, name), *entries]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join([*lines, *(f"% {one_line(note)}" for note in table.notes)]) + "\n"


def _latex(score: Score) -> str:
    text = escape_latex(text_of(score)).replace("±", r"$\pm$")
    head, dagger, count = text.partition(" †")
    exponent = rf"\dagger {count}".strip()
    return head + (f"$^{{{exponent}}}$" if dagger else "")


def to_csv(table: Table) -> str:
    """Rows and columns as in the Markdown, with the mean at full precision beside the text."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    header = [*table.labels, *table.mixers, *(f"{mixer}_text" for mixer in table.mixers)]
    writer.writerow(map(no_formula, header))
    for name, row in table.rows.items():
        means = ["" if row[m].mean is None else repr(row[m].mean) for m in table.mixers]
        writer.writerow([*map(no_formula, name), *means, *(text_of(row[m]) for m in table.mixers)])
    return file.getvalue()


def to_rows_csv(frame: pd.DataFrame) -> str:
    """One row per replica, as `collect` gives them."""
    safe = frame.rename(columns=no_formula)
    for column in safe.select_dtypes(exclude=["number", "bool"]):
        safe[column] = safe[column].map(lambda value: no_formula(value) if isinstance(value, str) else value)
    return safe.to_csv(index=False, lineterminator="\n")


def intervals_csv(table: Table) -> str:
    """A row for each entry of a table of means: the mean, its `n` seeds and its interval over them.

    `low` and `high` are Student's (95%), cut to [0, 1], and empty for one seed or where settings have different seeds.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*table.labels, "mixer", "mean", "settings", "of", "n", "low", "high"])
    for name, row in table.rows.items():
        for mixer, score in row.items():
            low, high = interval(list(score.by_seed.values())) or ("", "")
            mean = "" if score.mean is None else score.mean
            labels = map(no_formula, (*name, mixer))
            writer.writerow([*labels, mean, score.done, score.total, score.seeds, low, high])
    return file.getvalue()
