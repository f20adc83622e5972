"""Compares our numbers with published ones: a table with differences, a scatter plot with the diagonal, and bars.

SOURCE is an archive of records, a results folder, or the `rows.csv` of a report. Our number is what a paper with one
seed would report, the accuracy at the best learning rate, averaged over our seeds. A mean that lacks some of the task's
settings is marked with `*` and enters neither RMSE nor rank correlation. A published number is the best of the learning
rates that its file lists: of ours only these count, and a cell that lacks one counts as missing.
"""

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from mixerlab.records.atomic import replace_file
from mixerlab.records.best import ENDED, SELECTIONS, Selection
from mixerlab.records.files import check_writable
from mixerlab.records.names import MIXERS, in_order
from mixerlab.records.text import captions_page
from mixerlab.sweeps.figures.canvas import FORMATS, TWO_COLUMNS, Layout, caption_of, save
from mixerlab.sweeps.figures.comparison import scatter, side_by_side
from mixerlab.sweeps.report.report import add_layout, layout_of
from mixerlab.sweeps.tables.collect import rows_of
from mixerlab.sweeps.tables.published import TABLES, Pair, distance, mixers_of, pairs_of, read_published, tasks_of

PUBLISHED = Path(__file__).parents[2] / "results" / "published"
FAR = 0.05  # of an accuracy: a larger difference from the published one wants a reason
TITLES = {"means": "Means over a task's settings", "settings": "Single settings"}


def compare(
    source: str | Path,
    published: Path,
    out: Path,
    selection: Selection = "official",
    readings: Mapping[str, str] | None = None,
    all_rates: bool = False,
    layout: Layout = TWO_COLUMNS,
) -> str:
    """Writes table and figures of the published file NAME into `out`: `NAME.md` and `.csv`, a scatter, and bars.

    Args:
        source: as of `report`.
        published: a file such as those of `results/published`.
        out: the folder.
        selection: what chooses checkpoint and learning rate.
        readings: tasks of ours by the published name that they are compared with.
        all_rates: the best of all rates that we tried, instead of those that the file lists.
        layout: of the figures. If it is bare, `NAME_captions.md` has what their titles would say.

    Returns:
        The Markdown.
    """
    numbers, readings = read_published(published), readings or {}
    frame = read_as(rows_of(source), readings, tasks_of(numbers))
    pairs = pairs_of(frame, numbers, selection, all_rates)
    rates = () if all_rates else numbers.get("rates", ())
    check_writable(out, "--out")
    text = markdown(pairs, numbers["source"] + _remarks(frame, numbers, readings), rates)
    replace_file(out / f"{published.stem}.md", text)
    replace_file(
        out / f"{published.stem}.csv", pd.DataFrame(map(asdict, pairs)).drop(columns="by_seed").to_csv(index=False)
    )
    captions = {}
    for name, draw, shown in (
        (published.stem, scatter, pairs),
        *((f"{published.stem}_{of}", side_by_side, [pair for pair in pairs if pair.of == of]) for of in TABLES),
    ):
        if any(pair.ours is not None for pair in shown):
            figure = draw(shown, selection, rates, layout)
            save(figure, out / name, FORMATS[:2])
            captions[name] = caption_of(figure)
    if layout.bare:
        replace_file(out / f"{published.stem}_captions.md", captions_page(captions))
    return text


def read_as(frame: pd.DataFrame, readings: Mapping[str, str], tasks: Collection[str]) -> pd.DataFrame:
    """The rows with tasks of ours under published names: `{"ncr_vocab_challenge": "ncr_challenge"}`.

    Raises:
        ValueError: a published name that is none of `tasks`, or a task of ours without runs.
    """
    for published, ours in readings.items():
        if published not in tasks:
            raise ValueError(f"--reading {published}={ours}: there are published numbers of {', '.join(sorted(tasks))}")
        if ours not in set(frame["task"]):
            raise ValueError(f"--reading {published}={ours}: there are no runs of {ours}")
    names = {ours: published for published, ours in readings.items()}  # all at once: two tasks may change places
    kept = frame["task"].isin(names) | ~frame["task"].isin(readings)
    return frame.assign(task=frame["task"].replace(names))[kept]


def _remarks(frame: pd.DataFrame, published: dict[str, Any], readings: Mapping[str, str]) -> str:
    """What a reader must know of our runs: how tasks are read, several configurations, mixers that are not compared."""
    ended = frame[frame["status"].isin(ENDED) & frame["task"].isin(tasks_of(published))]
    compared = ended[ended["mixer"].isin(mixers_of(published))]
    configs = compared.groupby(["mixer", "task", "setting"])["config"].nunique()
    several = sorted(set(configs[configs > 1].index.get_level_values("mixer")))
    others = sorted(set(ended["mixer"]) - mixers_of(published))
    return "".join(
        [
            *(f" Our {ours} is read as its {name}." for name, ours in readings.items()),
            f" Each seed has the best of several configurations of {', '.join(several)}." if several else "",
            f" Ours without a published number: {', '.join(others)}." if others else "",
        ]
    )


def markdown(pairs: Sequence[Pair], source: str, rates: Collection[float] = ()) -> str:
    """A table for means and one for settings: ours, the published number in brackets, and the difference.

    Args:
        pairs: as `pairs_of` gives them.
        source: where the published numbers are from.
        rates: the learning rates of which ours are the best. Empty: all that were tried.
    """
    of_rates = f" of {', '.join(f'{rate:g}' for rate in rates)}" if rates else ""
    lines = [f"Ours (each seed's best learning rate{of_rates}, mean over seeds), (published), difference."]
    lines += [f"Published: {source}", ""]
    if all(pair.ours is None for pair in pairs):
        names = ", ".join(dict.fromkeys(pair.name for pair in pairs))
        lines += [f"None of these published numbers has a counterpart of ours: {names}.", ""]
    for of, title in TITLES.items():
        chosen = [pair for pair in pairs if pair.of == of]
        if all(pair.ours is None for pair in chosen):
            continue
        mixers = in_order((pair.mixer for pair in chosen), MIXERS)
        entries = {(pair.name, pair.mixer): _entry(pair) for pair in chosen}
        lines += [f"## {title}", "", f"| | {' | '.join(mixers)} |", f"|---|{'---|' * len(mixers)}"]
        for name in dict.fromkeys(pair.name for pair in chosen):
            lines.append(f"| {name} | {' | '.join(entries.get((name, mixer), '') for mixer in mixers)} |")
        lines += ["", _summary(chosen), ""]
    return "\n".join(lines)


def _entry(pair: Pair) -> str:
    if pair.ours is None:
        return f"- ({pair.published:.3f})"
    mark = "" if pair.complete else rf"\* ({pair.done}/{pair.total})"
    off = round(pair.ours - pair.published, 3) + 0.0  # no -0.000
    return f"{pair.ours:.3f}{mark} ({pair.published:.3f}) {off:+.3f}"


def _summary(pairs: Sequence[Pair]) -> str:
    number, rmse, spearman = distance(pairs)
    complete = [pair.ours - pair.published for pair in pairs if pair.complete and pair.ours is not None]
    # Rounded: 0.55 - 0.5 is more than 0.05 in its last bit.
    far = sum(round(abs(difference), 12) > FAR for difference in complete)
    text = f"Complete: {number} of {len(pairs)}."
    if rmse is not None:
        text += f" RMSE {rmse:.3f}" + (f", Spearman {spearman:.2f}" if spearman is not None else "")
        text += f". Off by more than {FAR}: {far}."
    incomplete = any(pair.done and not pair.complete for pair in pairs)
    return text + (r" \* Over k of n settings (k/n): not comparable, part of neither number." if incomplete else "")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mixerlab.sweeps.report.compare",
        usage="%(prog)s SOURCE [OPTION ...]",  # SOURCE first: behind --published or --reading it would be one of theirs
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", help="an archive, a results folder or a rows.csv")
    parser.add_argument("--published", nargs="+", type=Path, help="default: all of results/published in a checkout")
    parser.add_argument("--out", type=Path, default=Path("results/compare"), help="default: results/compare")
    parser.add_argument("--selection", choices=SELECTIONS, default="official")
    parser.add_argument(
        "--reading", nargs="+", default=[], metavar="PUBLISHED=OURS", help="our task for a published one"
    )
    parser.add_argument("--all-rates", action="store_true", help="the best of all our learning rates")
    add_layout(parser)
    args = parser.parse_args(arguments)
    try:
        readings = dict(reading.partition("=")[::2] for reading in args.reading)
        for published in args.published or sorted(PUBLISHED.glob("*.json")):
            text = compare(args.source, published, args.out, args.selection, readings, args.all_rates, layout_of(args))
            print(text)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"tables and figures: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
