"""Sets our numbers beside published ones: `mixerlab compare [SOURCE ...]` writes tables and figures.

Each of ours is what a paper with one seed would report, the accuracy at the seed's best learning rate, averaged over
seeds; a mean that lacks some of the task's settings is marked with `*` and enters neither RMSE nor rank correlation.
`--rule last` is the accuracy of the last epoch, at one learning rate of each task for all mixers.
"""

import argparse
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd

from mixerlab.records.atomic import replace_file
from mixerlab.records.files import check_writable
from mixerlab.records.text import captions_page, escape_markdown
from mixerlab.sweeps.figures.comparison import comparison
from mixerlab.sweeps.figures.marks import CHOSEN
from mixerlab.sweeps.figures.sheet import FORMATS, check_width, save
from mixerlab.sweeps.report.report import WIDTH, folder_for
from mixerlab.sweeps.tables import published
from mixerlab.sweeps.tables.collect import rows_of
from mixerlab.sweeps.tables.columns import labels as labels_of
from mixerlab.sweeps.tables.notes import notes_of
from mixerlab.sweeps.tables.published import Published, Rule
from mixerlab.sweeps.tables.swept import only_where, spread_out
from mixerlab.sweeps.tables.tables import INTERVAL, UNEVEN, Entry, most_seeds, text_of
from mixerlab.sweeps.tables.writers import in_place_order, markdown

OUTSIDE = 0.02  # further than this outside the range of the published numbers is counted
MARKS: dict[str, Callable[[Entry], bool]] = {
    INTERVAL: lambda own: own.half_interval is not None,
    UNEVEN: lambda own: own.uneven,
    "* Over some of the settings only, or it sees the future: part of no distance.": lambda own: not own.whole,
}
RULES = {rule: f"each seed's {told}" for rule, told in CHOSEN.items()} | {
    "last": "last epoch, at the learning rate of each task that is best on test for all mixers together"
}
TITLES = {"means": "Means over a task's settings", "settings": "Single settings"}


def compare(
    sources: Sequence[str | Path],
    out: str | Path,
    tables: Mapping[str, Published] | None = None,
    labels: Sequence[str] = (),
    rules: Sequence[Rule] = ("official",),
    rates: Collection[float] = (),
    where: Collection[str] = (),
    by: Collection[str] | None = None,
    width: float | None = None,
) -> str:
    """Writes `published.md`, and `means` and `settings` as png and pdf into `out`.

    Returns the Markdown. There is a series for each source and rule. ValueError as of `report`, whose `where`, `by` and
    `width` these are; for labels that are not one for each source, or a source that has no number of any table.

    Args:
        tables: the published ones; None: all of ours. In figures the first is a bar, the range of the others a band.
        labels: of the sources; by default `ours` for one, else their names.
        rates: only these learning rates of ours count. Empty: those of the table, if there is one table and it has
            some; else all.
    """
    check_width(width)
    tables = published.read_published() if tables is None else tables
    settings = published.averaged_settings(tables.values())
    if len(tables) == 1 and not rates:
        (rates,) = (table.rates for table in tables.values())
    rows = [rows_of(source) for source in sources]
    kept = only_where(pd.concat(rows, keys=range(len(rows))), where).index  # a value that only one source has will do
    own = [one[[(number, place) in kept for place in one.index]] for number, one in enumerate(rows)]
    frames = [spread_out(one, by, data_in_columns=True) for one in own]
    every: dict[str, pd.Series] = {}
    empty = []
    for source, label, frame in zip(sources, _labels(sources, labels), frames, strict=True):
        found = {rule: published.ours(frame, settings, rule, rates) for rule in rules}
        for rule, series in found.items():
            parts = [label if len(frames) > 1 or len(rules) == 1 else "", rule if len(rules) > 1 else ""]
            every[", ".join(filter(None, parts))] = series
        if all(series.empty for series in found.values()):
            empty.append(str(source))
    at = [f"learning rates {', '.join(f'{rate:g}' for rate in rates)}"] if rates else []
    if empty:
        (task, _), over = next(iter(settings.items()))
        example = f"a setting that a table of {', '.join(tables)} has, such as {task} {over[0]}"
        lacking = f"{', '.join(empty)}: no run on {example}"
        tried = ", ".join(f"{rate:g}" for rate in sorted({rate for frame in frames for rate in frame["lr"].dropna()}))
        raise ValueError(", at each of ".join([lacking, *at]) + (f"; --rates names others, of {tried}" if at else ""))
    out = Path(out)
    check_writable(out, "--out")
    told = "; ".join([*(RULES[rule] for rule in rules), *at])
    ours = in_place_order(pd.concat(every, axis=1))
    scored = [entry for entry in ours.stack().dropna() if entry.mean is not None]
    marks = [note for note, has_mark in MARKS.items() if any(map(has_mark, scored))]
    text, captions = [" ".join([f"Ours: {told}.", *marks])], {}
    known, titles = published.numbers_of(tables), {key: table.title for key, table in tables.items()}
    for kind, title in TITLES.items():
        shown, numbers = (of[(of.index.get_level_values("setting") == "") == (kind == "means")] for of in (ours, known))
        if len(shown):
            numbers = numbers.dropna(axis=1, how="all")
            means = shown.map(lambda entry: entry.mean if entry.whole else None, na_action="ignore").astype(float)
            shown_tables = numbers_table(shown, numbers), distances(means, numbers)
            parts = [markdown(table, escaped=escape_markdown).strip() for table in shown_tables]
            text += [f"## {title}", *parts, *outside(means, numbers)]
            figure = comparison(shown, numbers, titles, told, width)
            save(figure, out / kind, FORMATS[:2])
            captions[kind] = str(figure.get_label())
    of_ours = known.index.droplevel("mixer").isin(ours.index.droplevel("column"))
    is_shown = known[of_ours].notna().any()
    notes = [f"{key}: {table.about}" for key, table in tables.items() if is_shown[key]]
    places = [(task, setting) for (task, _), over in settings.items() for setting in over]
    for frame in frames:
        here = pd.MultiIndex.from_frame(frame[["task", "setting"]]).isin(places)
        notes += [note for note in notes_of(frame[here | frame["mixer"].isna()]) if note not in notes]
    have = {column.mixer for column in ours.index.unique("column")}
    if others := [mixer for mixer in known.index.unique("mixer") if mixer not in have]:
        notes.append(f"Published mixers without a number of ours are left out: {', '.join(others)}.")
    text.append("\n".join(f"- {escape_markdown(note)}" for note in notes))
    replace_file(out / "published.md", "\n\n".join(text) + "\n")
    if width is not None:
        replace_file(out / "captions.md", captions_page(captions))
    return "\n\n".join(text)


def _labels(sources: Sequence[str | Path], labels: Sequence[str]) -> Sequence[str]:
    names = [Path(source).resolve().name.partition(".")[0] for source in sources]
    names = names if len(set(names)) == len(names) else list(map(str, sources))
    labels = labels or (["ours"] if len(sources) == 1 else names)
    if len(labels) != len(sources) or len(set(labels)) < len(labels):
        raise ValueError(f"--labels {' '.join(labels)}: give {len(sources)} different ones, one for each source")
    return labels


def numbers_table(ours: pd.DataFrame, numbers: pd.DataFrame) -> pd.DataFrame:
    """A line for each number and column: ours, the range of the published ones, and each of these."""
    names, most = labels_of(ours.index.unique("column")), most_seeds(ours.stack().dropna())
    beside = published.of_mixers(numbers, ours.index)
    parts = [ours.map(lambda entry: text_of(entry, most) if pd.notna(entry) else "-")]
    if len(numbers.columns) > 1:
        ends = published.ranges(beside).itertuples(index=False)
        between = [f"{low:.3f} to {high:.3f} ({count})" if count > 1 else "" for low, high, count in ends]
        parts.append(pd.DataFrame({"published": between}, ours.index))
    parts.append(beside.dropna(axis=1, how="all").map("{:.3f}".format, na_action="ignore"))
    lines = [(published.name_of(task, setting), names[column]) for task, setting, column in ours.index]
    return pd.concat(parts, axis=1).set_axis(pd.MultiIndex.from_tuples(lines, names=["", "mixer"]))


def distances(means: pd.DataFrame, numbers: pd.DataFrame) -> pd.DataFrame:
    """RMSE and Spearman's rank correlation of each two tables over the numbers that both have, ours included."""

    def text(one: pd.Series, other: pd.Series) -> str:
        number, rmse, spearman = published.distance(one, other)
        return f"{rmse:.3f}{'' if np.isnan(spearman) else f', {spearman:.2f}'} ({number})" if number else "-"

    beside = published.of_mixers(numbers, means.index)
    ours = means.apply(lambda one: beside.apply(lambda other: text(one, other))).T
    theirs = numbers.apply(lambda one: numbers.apply(lambda other: text(one, other))).T
    parts = [ours, theirs.mask(np.eye(len(theirs), dtype=bool), "")] if len(theirs) > 1 else [ours]
    return pd.concat(parts).rename_axis("RMSE, Spearman (numbers)")


def outside(means: pd.DataFrame, numbers: pd.DataFrame) -> list[str]:
    """How many of ours, and of the first published table, are outside the range of the others: the figure's band."""
    first, *others = numbers
    found = []
    for label, own, beside in (
        *((label, own, published.of_mixers(numbers, means.index)) for label, own in means.items()),
        (first, numbers[first], numbers),
    ):
        ends = published.ranges(beside[others])
        in_band = own.notna() & (ends["count"] > 1)
        # Rounded: 0.55 - 0.5 is more than 0.05 in its last bit.
        far = np.maximum(ends["low"] - own, own - ends["high"]).round(12) > OUTSIDE
        if in_band.any():
            found.append(f"{label} {(far & in_band).sum()} of {in_band.sum()}")
    text = f"Where two or more of the tables but {first} have a number, further than {OUTSIDE} outside their range: "
    # The published one counts only beside ours.
    return [escape_markdown(text + f"{', '.join(found)}.")] if len(found) > 1 else []


def _chosen(names: Sequence[str], known: dict[str, Published]) -> dict[str, Published]:
    """Of the known tables those of these names, and all of a file; without names all that are known."""
    found = {}
    for name in names:
        if name in known:
            found[name] = known[name]
        elif Path(name).suffix in (".yaml", ".yml"):
            found |= published.read_published(name)
        else:
            raise ValueError(f"--published {name}: choose {', '.join(known)}, or the yaml of a table of your own")
    return found or known


def main(arguments: Sequence[str] | None = None) -> None:
    # SOURCE before the options: behind --published it would be taken for one of its tables.
    usage = "%(prog)s [SOURCE ...] [OPTION ...]"
    parser = argparse.ArgumentParser(prog="mixerlab compare", usage=usage, description=__doc__)
    add = parser.add_argument
    help_of_sources = "results folders, archives or a rows.csv, a series each; before the options (default: results)"
    add("sources", nargs="*", default=["results"], metavar="SOURCE", help=help_of_sources)
    add("--labels", nargs="+", default=[], help="of the sources, in their order (default: their names)")
    known = published.read_published()
    names = ", ".join(known)
    help_of_tables = f"of {names}, or a yaml of your own; in figures a bar for the first, a band for the others"
    add("--published", nargs="+", default=[], metavar="NAME", help=f"{help_of_tables} (default: all)")
    help_of_rules = "how ours are chosen: " + "; ".join(f"{rule}, {text}" for rule, text in RULES.items())
    add("--rule", dest="rules", nargs="+", choices=get_args(Rule), default=["official"], help=help_of_rules)
    rates = "of ours only these learning rates count (default: those of the one table that is shown, else all)"
    add("--rates", nargs="+", type=float, default=[], metavar="RATE", help=rates)
    add("--out", help="where to write (default: compare/ in the first one, or beside a file)")
    add("--where", nargs="+", default=[], metavar="KEY=VALUE", help="only such records, as of `mixerlab report`")
    add("--by", nargs="+", metavar="KEY", help="lines by these keys and no others (default: the keys that were swept)")
    add("--width", type=float, metavar="INCHES", help=WIDTH)
    args = vars(parser.parse_args(arguments))
    args["out"] = args["out"] or folder_for(args["sources"][0], "compare")
    text = compare(tables=_chosen(args.pop("published"), known), **args)
    print(re.sub(r"\\(.)", r"\1", text))  # a terminal shows Markdown's escapes
    print(f"tables and figures: {args['out']}")
