"""Sets our numbers beside published ones: `mixerlab compare [SOURCE ...]` writes tables and figures.

Each of ours is what a paper with one seed would report, the accuracy at the seed's best learning rate, averaged over
seeds; a mean that lacks some of the task's settings is marked with `*` and enters neither RMSE nor rank correlation.
`--rule last` is the accuracy of the last epoch, at one learning rate of each task for all mixers.
"""

import argparse
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import get_args

import pandas as pd

from mixerlab.records.atomic import replace_file
from mixerlab.records.files import check_writable
from mixerlab.records.names import place_rank
from mixerlab.records.text import captions_page, escape_markdown
from mixerlab.sweeps.figures.comparison import comparison
from mixerlab.sweeps.figures.marks import CHOSEN
from mixerlab.sweeps.figures.sheet import FORMATS, check_width, save
from mixerlab.sweeps.report.report import WIDTH, folder_for
from mixerlab.sweeps.tables import published
from mixerlab.sweeps.tables.collect import rows_of
from mixerlab.sweeps.tables.columns import Column, columns_in_order
from mixerlab.sweeps.tables.columns import labels as labels_of
from mixerlab.sweeps.tables.notes import notes_of
from mixerlab.sweeps.tables.published import Means, Name, Published, Rule, Series
from mixerlab.sweeps.tables.swept import only_where, spread_out
from mixerlab.sweeps.tables.tables import INTERVAL, UNEVEN, Entry, most_seeds, text_of
from mixerlab.sweeps.tables.writers import aligned

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
    if len(tables) == 1 and not rates:
        (rates,) = (table.rates for table in tables.values())
    rows = [rows_of(source) for source in sources]
    kept = only_where(pd.concat(rows, keys=range(len(rows))), where).index  # a value that only one source has will do
    own = [one[[(number, place) in kept for place in one.index]] for number, one in enumerate(rows)]
    frames = [spread_out(one, by, data_in_columns=True) for one in own]
    every: dict[str, Series] = {}
    empty = []
    for source, label, frame in zip(sources, _labels(sources, labels), frames, strict=True):
        found = {rule: published.ours(frame, tables.values(), rule, rates) for rule in rules}
        for rule, series in found.items():
            parts = [label if len(frames) > 1 or len(rules) == 1 else "", rule if len(rules) > 1 else ""]
            every[", ".join(filter(None, parts))] = series
        if not any(found.values()):
            empty.append(str(source))
    at = [f"learning rates {', '.join(f'{rate:g}' for rate in rates)}"] if rates else []
    if empty:
        table = next(iter(tables.values()))
        name = next(name for name, _ in table.numbers)
        example = f"{name.task} {table.settings_of(name)[0]}"
        lacking = f"{', '.join(empty)}: no run on a setting that a table of {', '.join(tables)} has, such as {example}"
        tried = ", ".join(f"{rate:g}" for rate in sorted({rate for frame in frames for rate in frame["lr"].dropna()}))
        raise ValueError(", at each of ".join([lacking, *at]) + (f"; --rates names others, of {tried}" if at else ""))
    out = Path(out)
    check_writable(out, "--out")
    told = "; ".join([*(RULES[rule] for rule in rules), *at])
    text, captions = [], {}
    for kind, title in TITLES.items():
        shown = {label: {name: series[name] for name in series if name.kind == kind} for label, series in every.items()}
        if any(shown.values()):
            numbers = {
                key: {place: own for place, own in table.numbers.items() if place[0].kind == kind}
                for key, table in tables.items()
            }
            theirs = {key: replace(tables[key], numbers=own) for key, own in numbers.items() if own}
            means = {label: published.whole(series) for label, series in shown.items()}
            text += [f"## {title}", markdown(shown, theirs), distances(means, theirs), *outside(means, theirs)]
            figure = comparison(shown, theirs, told, width)
            save(figure, out / kind, FORMATS[:2])
            captions[kind] = str(figure.get_label())
    own_rows = [row for series in every.values() for row in series.values()]
    scored = [entry for row in own_rows for entry in row.values() if entry.mean is not None]
    marks = [note for note, has_mark in MARKS.items() if any(map(has_mark, scored))]
    text.insert(0, " ".join([f"Ours: {told}.", *marks]))
    notes = [
        f"{key}: {table.about}"
        for key, table in tables.items()
        if any(name in series for name, _ in table.numbers for series in every.values())
    ]
    places = [
        (name.task, setting)
        for table in tables.values()
        for name, _ in table.numbers
        for setting in table.settings_of(name)
    ]
    for frame in frames:
        here = pd.MultiIndex.from_frame(frame[["task", "setting"]]).isin(places)
        notes += [note for note in notes_of(frame[here | frame["mixer"].isna()]) if note not in notes]
    have = {column.mixer for row in own_rows for column in row}
    if others := dict.fromkeys(mixer for table in tables.values() for _, mixer in table.numbers if mixer not in have):
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


def markdown(every: Mapping[str, Series], tables: Mapping[str, Published]) -> str:
    """A line for each name and column: ours, the range of the published ones, and each of these."""
    band, several = published.ranges(tables.values()), len(tables) > 1
    rows: dict[Name, set[Column]] = {}
    for name, row in chain.from_iterable(series.items() for series in every.values()):
        rows.setdefault(name, set()).update(row)
    texts = labels_of(set().union(*rows.values()))
    most = most_seeds(entry for series in every.values() for row in series.values() for entry in row.values())
    places = {(name, column.mixer) for name, columns in rows.items() for column in columns}
    tables = {key: table for key, table in tables.items() if not places.isdisjoint(table.numbers)}
    lines = [[*map(escape_markdown, ("", "mixer", *every, *(["published"] if several else []), *tables))]]
    for name in sorted(rows, key=place_rank):
        for column in columns_in_order(rows[name]):
            place = name, column.mixer
            low, high, count = band.get(place, (0.0, 0.0, 0))
            found = [series.get(name, {}).get(column) for series in every.values()]
            entries = ["-" if entry is None else text_of(entry, most) for entry in found]
            between = [f"{low:.3f} to {high:.3f} ({count})" if count > 1 else ""] if several else []
            theirs = [f"{table.numbers[place]:.3f}" if place in table.numbers else "" for table in tables.values()]
            labels = map(escape_markdown, (str(name), texts[column]))
            lines.append([*labels, *entries, *between, *theirs])
    return aligned(lines, 2)


def distances(means: Mapping[str, Means], tables: Mapping[str, Published]) -> str:
    """RMSE and Spearman's rank correlation of each two tables over the numbers that both have, ours included."""
    lines = [["RMSE, Spearman (numbers)", *tables]]
    several = tables.items() if len(tables) > 1 else ()
    rows = [(label, None, numbers) for label, numbers in means.items()]
    for label, table, numbers in [*rows, *((key, table, table.numbers.items()) for key, table in several)]:
        lines.append([label])
        for other in tables.values():
            number, rmse, spearman = published.distance(numbers, other.numbers)
            text = "-" if rmse is None else f"{rmse:.3f}{'' if spearman is None else f', {spearman:.2f}'} ({number})"
            lines[-1].append("" if table is other else text)
    return aligned(lines, 1, escape_markdown)


def outside(means: Mapping[str, Means], tables: Mapping[str, Published]) -> list[str]:
    """How many of ours, and of the first published table, are outside the range of the others: the figure's band."""
    (first, table), *others = tables.items()
    band = {place: ends for place, ends in published.ranges(table for _, table in others).items() if ends[2] > 1}
    found = []
    for label, numbers in [*means.items(), (first, table.numbers.items())]:
        pairs = [(value, band[place]) for place, value in numbers if place in band]
        # Rounded: 0.55 - 0.5 is more than 0.05 in its last bit.
        far = sum(round(max(low - value, value - high), 12) > OUTSIDE for value, (low, high, _) in pairs)
        if pairs:
            found.append(f"{label} {far} of {len(pairs)}")
    text = f"Where two or more of the tables but {first} have a number, further than {OUTSIDE} outside their range: "
    return [escape_markdown(text + f"{', '.join(found)}.")] if found else []


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
