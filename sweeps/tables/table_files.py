"""The accuracy tables (`sweeps.tables`) as Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Callable, Sequence
from itertools import groupby

import pandas as pd

from mixerlab.records.names import AVERAGE, parts_of
from mixerlab.records.text import escape_latex, escape_markdown, no_formula, one_line
from mixerlab.sweeps.tables.intervals import interval
from mixerlab.sweeps.tables.tables import (
    SPREAD,
    UNEVEN,
    Score,
    Table,
    best_of,
    has_uneven_seeds,
    marks_of,
    text_of,
)

_LONGEST_KEY = 10  # characters: a longer one would widen the labels of a LaTeX table


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


def to_latex(table: Table, bare: bool = False) -> str:
    """A `tabular` for the booktabs package, best means bold, with the legend below it and the remarks as comments.

    `bare`: the legend is comments as well, for a paper whose caption says it.

    Seeds are subscripts and marks are superscripts. A spread names the number of its seeds only if it is less than the
    most. So six tasks and five mixers fit the width of a NeurIPS page (5.5 inches).
    """
    columns = "l" * (len(table.labels) + len(table.mixers))  # so that means, all of five characters, are aligned
    lines = [rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}", r"\toprule"]
    most = max((len(score.by_seed) for row in table.rows.values() for score in row.values()), default=0)
    lines += [*_latex_header(table), r"\midrule"]
    for name, row in table.rows.items():
        best = best_of(row)
        if name == (AVERAGE,):
            lines.append(r"\midrule")
        entries = [_latex(row[mixer], mixer in best, most) for mixer in table.mixers]
        lines.append(" & ".join([*map(escape_latex, name), *entries]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    spread = f"Subscript ± std: the sample standard deviation over {most} seeds, or over n if (n) follows."
    below = [note.replace(SPREAD, spread).replace(UNEVEN, "Subscript n--m (seeds)") for note in table.legend]
    if below and not bare:  # in one box with the table, so that both are placed, and may be scaled, together
        lines = [r"\begin{tabular}{@{}c@{}}", *lines, r"\\ \noalign{\medskip}"]
        lines += [r"\parbox{\linewidth}{\footnotesize\raggedright"]
        lines += [rf"{escape_latex(note)}\par" for note in below]
        lines += ["}", r"\end{tabular}"]
    comments = [f"% {one_line(note)}" for note in [*(below if bare else []), *table.remarks]]
    return "\n".join([r"% \usepackage{booktabs}", *lines, *comments]) + "\n"


def _latex_header(table: Table) -> list[str]:
    """One line or, if keys were swept, one for the mixers, one or two for each key, and one for the labels of the rows.

    In one line, `attn, d_model=64` would be wider than any entry below it, and a sweep wider than a page.
    """
    mixers, values = [], []
    for column in table.mixers:
        mixer, *parts = parts_of(column)
        mixers.append(mixer)
        values.append({key: value for key, _, value in (part.partition("=") for part in parts)})
    keys = dict.fromkeys(key for of_column in values for key in of_column)
    if not keys:
        return [_latex_line(table.labels, mixers)]
    left, total = len(table.labels), len(table.labels) + len(mixers)
    before = [""] * (left - 1)  # the names of the keys stand in the last column of labels
    above, rules, first = [], [], left + 1
    for mixer, columns in groupby(mixers):
        last = first + len(list(columns)) - 1
        place = "l@{}" if last == total else "l"
        above.append(rf"\multicolumn{{{last - first + 1}}}{{{place}}}{{{escape_latex(mixer)}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{last}}}")
        first = last + 1
    lines = [" & ".join([*before, "mixer", *above]) + r" \\", " ".join(rules)]
    longest = max([_LONGEST_KEY, *(len(name[-1]) for name in table.rows)])
    for key in keys:
        name = key
        if len(key) > longest:  # a line of its own, across the table
            lines.append(rf"\multicolumn{{{total}}}{{@{{}}l@{{}}}}{{{escape_latex(key)}}} \\")
            name = ""
        lines.append(_latex_line([*before, name], [of_column.get(key, "") for of_column in values]))
    return [*lines, _latex_line(table.labels, [""] * len(mixers))]


def _latex_line(labels: Sequence[str], entries: Sequence[str]) -> str:
    return " & ".join(map(escape_latex, (*labels, *entries))) + r" \\"


def _latex(score: Score, is_best: bool, most: int) -> str:
    """An entry: the mean, its spread or the seeds of its settings as a subscript, and its marks as a superscript.

    `most` is the number of seeds that a spread need not name.
    """
    if score.mean is None:
        return escape_latex(text_of(score))
    text = rf"\textbf{{{score.mean:.3f}}}" if is_best else f"{score.mean:.3f}"
    if score.spread is not None:
        seeds = f" ({score.seeds})" if len(score.by_seed) < most else ""
        text += rf"\textsubscript{{$\pm${score.spread:.3f}{seeds}}}"
    elif has_uneven_seeds(score):
        text += rf"\textsubscript{{{score.seeds.replace(' to ', '--')}}}"
    marks = escape_latex(marks_of(score).strip())
    return text + (rf"\textsuperscript{{{marks}}}" if marks else "")


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
