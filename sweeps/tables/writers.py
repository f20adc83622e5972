"""Tables as Markdown, LaTeX and CSV. All that comes from records is escaped."""

from collections.abc import Callable, Iterable

import pandas as pd

from mixerlab.records.best import ENDED
from mixerlab.records.names import AVERAGE, place_rank
from mixerlab.records.text import duration, escape_latex, escape_markdown, one_line
from mixerlab.sweeps.tables.columns import label_parts, labels
from mixerlab.sweeps.tables.tables import Entry, Table, by_column, marks_of, seeds_of, settings_of, task_table, text_of


def markdown(table: pd.DataFrame, note: str = "", escaped: Callable[[str], str] = str) -> str:
    """A table of texts: its index flush left, its columns right, nothing where a text is missing; a note below it.

    Names are `escaped`, of lines and columns; texts are as they are.
    """
    names = [name if isinstance(name, str) else " ".join(name) for name in table]
    lines = [[*map(escaped, [*table.index.names, *names])]]
    for name, texts in zip(table.index.to_frame().to_numpy(), table.fillna("").to_numpy(), strict=True):
        lines.append([*map(escaped, name), *texts])
    sides = "<" * table.index.nlevels + ">" * len(names)
    forms = [(side, max(map(len, texts))) for side, texts in zip(sides, zip(*lines, strict=True), strict=True)]
    ruler = ["-" * (width - 1) + ("-" if side == "<" else ":") for side, width in forms]
    rendered = []
    for line in (lines[0], ruler, *lines[1:]):
        texts = (f"{text:{side}{width}}" for text, (side, width) in zip(line, forms, strict=True))
        rendered.append(f"| {' | '.join(texts)} |")
    return "\n".join([*rendered, *(["", note] if note else []), ""])


def in_place_order(table: pd.DataFrame) -> pd.DataFrame:
    """The lines by the first two parts of their names, task and setting (`place_rank`), then by the others."""
    return table.loc[sorted(table.index, key=lambda line: (place_rank(line[:2]), line[2:]))]


def to_markdown(table: Table, escaped: Callable[[str], str] = escape_markdown) -> str:
    """The table with the best entries of each row (`best_of`) in bold, columns aligned, and the notes as a list.

    For a terminal `escaped` is `one_line`: names stay as they are, such as `mixer.layers=[attn,gdn]`.
    """
    texts = to_frame(table)
    notes = "\n".join(f"- {escaped(note)}" for note in table.notes)
    return markdown(texts.mask(table.best.to_numpy(), "**" + texts + "**"), notes, escaped)


def to_frame(table: Table) -> pd.DataFrame:
    """The texts of the table, marks included, by its rows and the labels of its columns; `attrs` has the notes."""
    most = table.most_seeds
    frame = table.frame.map(lambda entry: text_of(entry, most)).set_axis(labels(table.frame).values(), axis=1)
    frame.attrs["notes"] = list(table.notes)
    return frame


def to_latex(table: Table) -> str:
    """A `tabular` for the booktabs package, best means bold, and the notes as comments.

    Seeds are subscripts and marks are superscripts, so that six tasks and five mixers fit the width of a NeurIPS page.
    The values of swept keys stand below their mixer: in one line they would be wider than any entry.
    """
    names, most = table.frame.index.to_frame(), table.most_seeds
    places = "l" * (names.shape[1] + table.frame.shape[1])  # so that means, all of five characters, are aligned
    heads = [r"\\".join(map(escape_latex, parts)) for parts in label_parts(table.frame).values()]
    heads = [rf"\shortstack[l]{{{head}}}" if r"\\" in head else head for head in heads]
    header = _latex_line(names, heads)
    lines = [rf"\begin{{tabular}}{{@{{}}{places}@{{}}}}", r"\toprule", header, r"\midrule"]
    parts = names.to_numpy(), table.frame.to_numpy(), table.best.to_numpy()
    for name, entries, best in zip(*parts, strict=True):
        if name[0] == AVERAGE:
            lines.append(r"\midrule")
        lines.append(_latex_line(name, (_latex_entry(*of, most) for of in zip(entries, best, strict=True))))
    lines += [r"\bottomrule", r"\end{tabular}"]
    comments = [f"% {one_line(note)}" for note in table.notes]
    return "\n".join([r"% \usepackage{booktabs}", *lines, *comments]) + "\n"


def _latex_line(names: Iterable[str], entries: Iterable[str]) -> str:
    return " & ".join([*map(escape_latex, names), *entries]) + r" \\"


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
    entries = table.frame.stack()
    parts = {
        "mean": [entry.mean for entry in entries],
        "half_interval": [entry.half_interval for entry in entries],
        "n": [entry.seeds[0] for entry in entries],
        "settings": [entry.done for entry in entries],
        "of": [entry.total for entry in entries],
        "bold": table.best.stack().astype(int),
        "wider_grid": [entry.edges for entry in entries],
        "incomplete": [int(entry.incomplete) for entry in entries],
        "status": [entry.status for entry in entries],
    }
    rows = pd.DataFrame(parts, entries.index).reset_index()
    return rows_csv(rows.assign(column=rows["column"].map(labels(table.frame))))


def rows_csv(frame: pd.DataFrame) -> str:
    """The rows of a frame, such as one per replica as `collect` gives them."""
    return frame.to_csv(index=False, lineterminator="\n")


def cost_markdown(frame: pd.DataFrame) -> str | None:
    """What a run of each (task, setting) and column takes; None if no record says it. `frame`: of `spread_out`."""
    costs = ["num_params", "training_s", "tokens_per_s", "peak_memory_mb"]
    told = frame[frame["mixer"].notna() & frame["status"].isin(ENDED)]
    told = told.reindex(columns=["task", "setting", "column", "device", "run_id", "replica", *costs])
    told[costs] = told[costs].apply(pd.to_numeric, errors="coerce")
    told = told.assign(replicas=told.groupby("run_id")["replica"].transform("size"), device=told["device"].fillna("-"))
    runs = told.drop_duplicates("run_id").dropna(subset=["training_s", "tokens_per_s"])
    if runs.empty:
        return None
    names = labels(runs["column"].unique())
    medians = in_place_order(runs.groupby(["task", "setting", "column", "device", "replicas"])[costs].median())
    size, seconds, speed, memory = (medians[cost] for cost in costs)
    table = pd.DataFrame(
        {
            "replicas": medians.index.get_level_values("replicas").map(str),
            "parameters": size.map("{:,.0f}".format),
            "training": seconds.map(duration),
            "tokens/s": speed.map("{:,.0f}".format),
            "GPU memory": memory.map(lambda most: "-" if pd.isna(most) else f"{most:,.0f} MB"),
        }
    )
    return (
        "Of a run, whose replicas (learning rate, seed) train together: parameters of one, the time of training with\n"
        "the scoring of each epoch, the tokens that all replicas train on in a second of it, and the most memory of\n"
        "their tensors on a GPU. Medians over runs of as many replicas on one device.\n\n"
        + markdown(table.droplevel("replicas").rename(index=names, level="column"), escaped=escape_markdown)
    )


def solved_markdown(cells: pd.DataFrame, benchmark: pd.DataFrame) -> str | None:
    """What learned: by task the share of seeds, and by setting `5/6, 1,200`, the replicas and the median steps.

    The shares are of `benchmark`, the cells that means are over. None if no score is an accuracy.
    """
    cells, benchmark = (of[of["score"].map(lambda score: score.is_accuracy).astype(bool)] for of in (cells, benchmark))
    if cells.empty:
        return None

    def share(entry: Entry) -> str:
        return "-" if entry.learned is None else f"{entry.learned:.2f}{settings_of(entry)}"

    steps = cells["steps_to_90"].map(lambda median: "-" if pd.isna(median) else f"{median:,.0f}")
    texts = cells["solved"].astype(str) + "/" + cells["known"].astype(str) + ", " + steps
    texts = cells.assign(text=texts.where(cells["known"] > 0, "-"))
    tables = task_table(benchmark).frame.map(share), by_column(texts, "text")
    shares, replicas = (markdown(own.rename(columns=labels(own)), escaped=escape_markdown) for own in tables)
    return (
        "Share of the seeds at the best learning rate that reached a test accuracy of 0.9, mean over the settings:\n\n"
        f"{shares}\n"
        "Replicas (learning rate, seed) that reached it, and the median of the steps to it. One that never did counts\n"
        "as infinitely late, so there is a median only where more than half did.\n\n"
        f"{replicas}"
    )
