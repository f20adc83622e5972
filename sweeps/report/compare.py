"""Compares our numbers with published ones: a table with differences, a scatter plot with the diagonal, and bars.

    python -m mixerlab.sweeps.report.compare SOURCE [--published FILE ...] [--out DIR] [--selection official|clean]
                                      [--reading ncr_vocab_challenge=ncr_challenge ...] [--all-rates]
                                      [--width INCHES | --columns 1|2] [--bare]

SOURCE is an archive of records (`sweeps.archive`), a results folder, or the `rows.csv` of a report. Our number is what
a paper with one seed would report, the accuracy at the best learning rate, averaged over our seeds. If a mean lacks
some of the task's settings, it is marked with `*` and enters neither RMSE nor rank correlation. A published number is
the best of the learning rates that its file lists: of ours only these count, and a cell that lacks one counts as
missing. `--all-rates` takes the best of all rates that we tried.
`--reading PUBLISHED=OURS` compares a published task with a different task of ours. `--width` is that of the bars; the
scatter plot takes at most one column of ICML.
"""

import argparse
import csv
import io
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from mixerlab.records.atomic import replace_file
from mixerlab.records.best import ENDED, Selection
from mixerlab.records.files import check_writable
from mixerlab.records.names import MIXERS, in_order
from mixerlab.records.text import captions_page
from mixerlab.sweeps.figures.canvas import TWO_COLUMNS, Layout, caption_of, save
from mixerlab.sweeps.figures.comparison import scatter, side_by_side
from mixerlab.sweeps.report.options import add_width
from mixerlab.sweeps.report.published import FAR, Pair, distance, is_far, pairs_of, read_published
from mixerlab.sweeps.tables.sources import rows_of

ROOT = Path(__file__).parents[1]
PUBLISHED = ROOT / "results" / "published"
FORMATS = ("png", "pdf")


def markdown(pairs: Sequence[Pair], source: str, rates: Collection[float] = ()) -> str:
    """A table for means and one for settings: ours, the published number in brackets, and the difference.

    One without any number of ours is left out.

    Args:
        rates: the learning rates of which ours are the best. Empty: all that were tried.
    """
    of_rates = f" of {', '.join(f'{rate:g}' for rate in rates)}" if rates else ""
    lines = [f"Ours (each seed's best learning rate{of_rates}, mean over seeds), (published), difference."]
    lines += [f"Published: {source}", ""]
    for of, title in (("means", "Means over a task's settings"), ("settings", "Single settings")):
        chosen = [pair for pair in pairs if pair.of == of]
        if all(pair.ours is None for pair in chosen):
            continue
        mixers = in_order((pair.mixer for pair in chosen), MIXERS)
        number, rmse, spearman = distance(chosen)
        lines += [f"## {title}", "", f"| | {' | '.join(mixers)} |", f"|---|{'---|' * len(mixers)}"]
        by_name: dict[str, dict[str, str]] = {}
        for pair in chosen:
            by_name.setdefault(pair.name, {})[pair.mixer] = _entry(pair)
        lines += [f"| {name} | {' | '.join(row.get(m, '') for m in mixers)} |" for name, row in by_name.items()]
        lines += ["", f"Complete: {number} of {len(chosen)}."]
        if rmse is not None:
            lines[-1] += f" RMSE {rmse:.3f}" + (f", Spearman {spearman:.2f}." if spearman is not None else ".")
            complete = [(pair.ours, pair.published) for pair in chosen if pair.complete and pair.ours is not None]
            far = sum(is_far(ours - published) for ours, published in complete)
            lines[-1] += f" Off by more than {FAR}: {far}."
        if any(pair.done and not pair.complete for pair in chosen):
            lines += ["", r"\* Over k of n settings (k/n): not comparable, part of neither number."]
        lines.append("")
    if all(pair.ours is None for pair in pairs):
        names = ", ".join(dict.fromkeys(pair.name for pair in pairs))
        lines += [f"None of these published numbers has a counterpart of ours: {names}.", ""]
    return "\n".join(lines)


def _entry(pair: Pair) -> str:
    if pair.ours is None:
        return f"- ({pair.published:.3f})"
    mark = "" if pair.complete else rf"\* ({pair.done}/{pair.total})"
    off = round(pair.ours - pair.published, 3) + 0.0  # no -0.000
    return f"{pair.ours:.3f}{mark} ({pair.published:.3f}) {off:+.3f}"


def to_csv(pairs: Iterable[Pair]) -> str:
    """A row for each published number."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["of", "name", "mixer", "published", "ours", "difference", "done", "total"])
    for pair in pairs:
        off = "" if pair.ours is None else pair.ours - pair.published
        ours = "" if pair.ours is None else pair.ours
        writer.writerow([pair.of, pair.name, pair.mixer, pair.published, ours, off, pair.done, pair.total])
    return file.getvalue()


def read_as(frame: pd.DataFrame, readings: Mapping[str, str]) -> pd.DataFrame:
    """The rows with tasks of ours under published names: `{"ncr_vocab_challenge": "ncr_challenge"}`."""
    tasks = frame["task"]
    for published, ours in readings.items():
        if ours not in set(tasks):
            raise ValueError(f"--reading {published}={ours}: there are no runs of {ours}")
    names = {ours: published for published, ours in readings.items()}  # all at once: two tasks may change places
    kept = tasks.isin(names) | ~tasks.isin(readings)
    return frame.assign(task=tasks.replace(names))[kept]


def check_readings(readings: Mapping[str, str], published: Iterable[Path]) -> None:
    """ValueError for a reading of a task of which no file has a number."""
    files = [read_published(path) for path in published]
    tables = [table for told in files for of in ("means", "settings") if isinstance(table := told.get(of), Mapping)]
    tasks = {name.partition(" ")[0] for table in tables for name in table if name != "columns"}
    for name, ours in readings.items():
        if name not in tasks:
            raise ValueError(
                f"--reading {name}={ours}: there is no published number of {name}; there are of"
                f" {', '.join(sorted(tasks))}"
            )


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

    If `layout` is bare, `NAME_captions.md` has what the figures' titles would say.

    Returns:
        The Markdown.
    """
    told = read_published(published)
    readings = readings or {}
    frame = read_as(rows_of(source), readings)
    pairs = pairs_of(frame, told, selection, all_rates)
    check_writable(out, "--out")
    read = "".join(f" Our {ours} is read as its {name}." for name, ours in readings.items()) + _of_ours(frame, told)
    rates = () if all_rates else told.get("rates", ())
    text = markdown(pairs, told["source"] + read, rates)
    replace_file(out / f"{published.stem}.md", text)
    replace_file(out / f"{published.stem}.csv", to_csv(pairs))
    of_means, of_settings = ([pair for pair in pairs if pair.of == of] for of in ("means", "settings"))
    drawings = {
        published.stem: (scatter, pairs),
        f"{published.stem}_means": (side_by_side, of_means),
        f"{published.stem}_settings": (side_by_side, of_settings),
    }
    captions = {}
    for name, (draw, shown) in drawings.items():
        if any(pair.ours is not None for pair in shown):
            figure = draw(shown, selection, rates, layout)
            save(figure, out / name, FORMATS)
            captions[name] = caption_of(figure)
        else:  # what an earlier comparison drew
            for suffix in FORMATS:
                (out / f"{name}.{suffix}").unlink(missing_ok=True)
    page = out / f"{published.stem}_captions.md"
    if layout.bare and captions:
        replace_file(page, captions_page(captions))
    else:
        page.unlink(missing_ok=True)
    return text


def _of_ours(frame: pd.DataFrame, told: Mapping[str, Any]) -> str:
    """What a reader must know of our mixers: which have several configurations, and which are not compared."""
    tables = [told[table] for table in ("means", "settings") if table in told]
    published = {mixer for table in tables for mixer in table["columns"]}
    tasks = {name.partition(" ")[0] for table in tables for name in table if name != "columns"}
    ended = frame[frame["status"].isin(ENDED) & frame["task"].isin(tasks)]
    compared = ended[ended["mixer"].isin(published)]
    configs = compared.groupby(["mixer", "task", "setting"])["config"].nunique()
    several = sorted(set(configs[configs > 1].index.get_level_values("mixer")))
    text = f" Each seed has the best of several configurations of {', '.join(several)}." if several else ""
    if others := sorted(set(ended["mixer"]) - published):
        text += f" Ours without a published number: {', '.join(others)}."
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mixerlab.sweeps.report.compare",
        usage="%(prog)s SOURCE [OPTION ...]",  # SOURCE first: behind --published or --reading it would be one of theirs
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", metavar="SOURCE", help="an archive, a results folder or a rows.csv")
    parser.add_argument("--published", nargs="+", type=Path, help="default: all of results/published")
    parser.add_argument("--out", type=Path, default=Path("results/compare"), help="default: results/compare")
    parser.add_argument("--selection", choices=["official", "clean"], default="official")
    parser.add_argument(
        "--reading", nargs="+", default=[], metavar="PUBLISHED=OURS", help="our task to compare with a published one"
    )
    parser.add_argument("--all-rates", action="store_true", help="the best of all our learning rates")
    add_width(parser)
    parser.add_argument(
        "--bare", action="store_true", help="figures without title and subtitle, for captions of your own"
    )
    given = parser.parse_args(arguments)
    try:
        if wrong := [reading for reading in given.reading if reading.count("=") != 1]:
            raise ValueError(f"--reading {wrong[0]}: give PUBLISHED=OURS, such as ncr_vocab_challenge=ncr_challenge")
        readings = dict(reading.split("=") for reading in given.reading)
        files = given.published or sorted(PUBLISHED.glob("*.json"))
        if not files:
            raise ValueError(
                "an installed mixerlab has no results/published: name files of a checkout with --published"
            )
        check_readings(readings, files)
        layout = Layout(given.width, given.bare)
        for published in files:
            print(compare(given.source, published, given.out, given.selection, readings, given.all_rates, layout))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"tables and figures: {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
