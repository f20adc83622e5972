"""Tables as Markdown, LaTeX and CSV. All that comes from records is escaped."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd

from mixerlab.records.best import ENDED
from mixerlab.records.names import AVERAGE, place_rank
from mixerlab.records.text import duration, escape_latex, escape_markdown, one_line
from mixerlab.sweeps.tables.columns import columns_in_order, label_parts, labels
from mixerlab.sweeps.tables.tables import Entry, Table, best_of, marks_of, seeds_of, settings_of, task_table, text_of


def to_markdown(table: Table, escaped: Callable[[str], str] = escape_markdown) -> str:
    """The table with the best entries of each row (`best_of`) in bold, columns aligned, and the notes as a list.

    For a terminal `escaped` is `one_line`: names stay as they are, such as `mixer.layers=[attn,gdn]`.
    """
    lines = [[*map(escaped, table.labels), *map(escaped, labels(table.columns).values())]]
    for name, row in table.rows.items():
        best = best_of(row)
        texts = {column: text_of(entry, table.most_seeds) for column, entry in row.items()}
        bold = [f"**{texts[column]}**" if column in best else texts[column] for column in table.columns]
        lines.append([*map(escaped, name), *bold])
    notes = [f"- {escaped(note)}" for note in table.notes]
    return "\n".join([aligned(lines, len(table.labels)), *([""] if notes else []), *notes]) + "\n"


def aligned(lines: Sequence[Sequence[str]], left: int, escaped: Callable[[str], str] = str) -> str:
    """A Markdown table of a header and rows, all texts `escaped`, the first `left` columns flush left."""
    lines = [list(map(escaped, line)) for line in lines]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    ruler = ["-" * width if i < left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    sides = ["<" if i < left else ">" for i in range(len(widths))]
    rendered = [
        " | ".join(f"{text:{side}{width}}" for text, side, width in zip(line, sides, widths, strict=True))
        for line in (lines[0], ruler, *lines[1:])
    ]
    return "\n".join(f"| {line} |" for line in rendered)


def to_frame(table: Table) -> pd.DataFrame:
    """The texts of the table, marks included, by its rows and the labels of its columns; `attrs` has the notes."""
    lines = [
        [*name, *(text_of(row[column], table.most_seeds) for column in table.columns)]
        for name, row in table.rows.items()
    ]
    head = [*table.labels, *labels(table.columns).values()]
    frame = pd.DataFrame(lines, columns=head).set_index(list(table.labels))
    frame.attrs["notes"] = list(table.notes)
    return frame


def to_latex(table: Table) -> str:
    """A `tabular` for the booktabs package, best means bold, and the notes as comments.

    Seeds are subscripts and marks are superscripts, so that six tasks and five mixers fit the width of a NeurIPS page.
    The values of swept keys stand below their mixer: in one line they would be wider than any entry.
    """
    places = "l" * (len(table.labels) + len(table.columns))  # so that means, all of five characters, are aligned
    heads = [r"\\".join(map(escape_latex, parts)) for parts in label_parts(table.columns).values()]
    heads = [rf"\shortstack[l]{{{head}}}" if r"\\" in head else head for head in heads]
    header = _latex_line(map(escape_latex, table.labels), heads)
    lines = [rf"\begin{{tabular}}{{@{{}}{places}@{{}}}}", r"\toprule", header, r"\midrule"]
    for name, row in table.rows.items():
        best = best_of(row)
        if name == (AVERAGE,):
            lines.append(r"\midrule")
        entries = [_latex_entry(row[column], column in best, table.most_seeds) for column in table.columns]
        lines.append(_latex_line(map(escape_latex, name), entries))
    lines += [r"\bottomrule", r"\end{tabular}"]
    comments = [f"% {one_line(note)}" for note in table.notes]
    return "\n".join([r"% \usepackage{booktabs}", *lines, *comments]) + "\n"


def _latex_line(labels: Iterable[str], entries: Iterable[str]) -> str:
    return " & ".join([*labels, *entries]) + r" \\"


def _latex_entry(entry: Entry, is_best: bool, most: int) -> str:
    if entry.mean is None:
        return escape_latex(text_of(entry, most))
    text = rf"\textbf{{{entry.mean:.3f}}}" if is_best else f"{entry.mean:.3f}"
    half = "" if entry.half_interval is None else f"±{entry.half_interval:.3f} "
    for command, said in (("subscript", half + seeds_of(entry, most)), ("superscript", marks_of(entry))):
        text += rf"\text{command}{{{escape_latex(said)}}}" if said else ""
    return text


def to_csv(table: Table) -> str:
    """A row for each entry, at full precision: the mean, half of its interval, marks.

    `half_interval` is empty for one seed. `n` is the fewest seeds of a setting.
    """
    lines: list[list[Any]] = []
    names = labels(table.columns)
    for name, row in table.rows.items():
        best = best_of(row)
        for column, entry in row.items():
            numbers = [entry.mean, entry.half_interval, entry.seeds[0], entry.done, entry.total]
            marks = [int(column in best), entry.edges, int(entry.incomplete), entry.status]
            lines.append([*name, names[column], *numbers, *marks])
    header = [*table.labels, "column", "mean", "half_interval", "n", "settings", "of"]
    header += ["bold", "wider_grid", "incomplete", "status"]
    return rows_csv(pd.DataFrame(lines, columns=header))


def rows_csv(frame: pd.DataFrame) -> str:
    """The rows of a frame, such as one per replica as `collect` gives them."""
    return frame.to_csv(index=False, lineterminator="\n")


_COST = ("num_params", "training_s", "tokens_per_s", "peak_memory_mb")  # of a row, and what `cost.md` calls them
_COST_NAMES = ("parameters", "training", "tokens/s", "GPU memory")


def cost_markdown(frame: pd.DataFrame) -> str | None:
    """What a run of each (task, setting) and column takes; None if no record says it. `frame`: of `spread_out`."""
    by = ["task", "setting", "column", "device", "replicas"]
    told = frame[frame["mixer"].notna() & frame["status"].isin(ENDED)]
    told = told.reindex(columns=["task", "setting", "column", "device", "run_id", "replica", *_COST])
    told = told.assign(**{name: pd.to_numeric(told[name], errors="coerce") for name in _COST})
    told = told.assign(replicas=told.groupby("run_id")["replica"].transform("size"), device=told["device"].fillna("-"))
    runs = told.drop_duplicates("run_id").dropna(subset=["training_s", "tokens_per_s"])
    if runs.empty:
        return None
    columns = columns_in_order(runs["column"])
    names = labels(columns)
    lines = [[*by, *_COST_NAMES]]
    for (task, setting, column, device, replicas), own in sorted(
        runs.groupby(by, sort=False),
        key=lambda group: (place_rank(group[0][:2]), columns.index(group[0][2]), group[0][3:]),
    ):
        size, seconds, speed, memory = own[list(_COST)].median()
        texts = (f"{size:,.0f}", duration(seconds), f"{speed:,.0f}", "-" if pd.isna(memory) else f"{memory:,.0f} MB")
        lines.append([task, setting, names[column], str(device), str(replicas), *texts])
    return (
        "Of a run, whose replicas (learning rate, seed) train together: parameters of one, the time of training with\n"
        "the scoring of each epoch, the tokens that all replicas train on in a second of it, and the most memory of\n"
        "their tensors on a GPU. Medians over runs of as many replicas on one device.\n\n"
        + aligned(lines, 4, escape_markdown)
        + "\n"
    )


def solved_markdown(cells: pd.DataFrame, benchmark: pd.DataFrame) -> str | None:
    """What learned: by task the share of seeds, and by setting `5/6, 1,200`, the replicas and the median steps.

    The shares are of `benchmark`, the cells that means are over. None if no score is an accuracy.
    """
    cells, benchmark = (of[of["score"].map(lambda score: score.is_accuracy).astype(bool)] for of in (cells, benchmark))
    if cells.empty:
        return None
    names = labels(cells["column"].drop_duplicates())
    shares = [["task", *names.values()]]
    for name, row in task_table(benchmark).rows.items():
        own = [row[column] for column in names]
        shares.append([*name, *("-" if of.learned is None else f"{of.learned:.2f}{settings_of(of)}" for of in own)])
    lines = [["task", "setting", *names.values()]]
    for name, group in cells.groupby(["task", "setting"], sort=False):
        texts = {}
        for cell in group.itertuples():
            steps = "-" if pd.isna(cell.steps_to_90) else f"{cell.steps_to_90:,.0f}"
            texts[cell.column] = f"{cell.solved}/{cell.known}, {steps}" if cell.known else "-"
        lines.append([*name, *(texts[column] for column in names)])
    return (
        "Share of the seeds at the best learning rate that reached a test accuracy of 0.9, mean over the settings:\n\n"
        f"{aligned(shares, 1, escape_markdown)}\n\n"
        "Replicas (learning rate, seed) that reached it, and the median of the steps to it. One that never did counts\n"
        "as infinitely late, so there is a median only where more than half did.\n\n"
        f"{aligned(lines, 2, escape_markdown)}\n"
    )
