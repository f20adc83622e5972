"""Compares our numbers with published ones: a table with differences, and a figure.

Our number is what a paper with one seed would report, the accuracy at the best learning rate, averaged over our seeds.
A mean that lacks some of the task's settings is marked with `*` and enters neither RMSE nor rank correlation. A
published number is the best of the learning rates that its file lists: of ours only these count, and a cell that lacks
one counts as missing.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from mixerlab.records.atomic import replace_file
from mixerlab.records.best import ENDED, SELECTIONS, Selection
from mixerlab.records.files import check_writable
from mixerlab.records.names import MIXERS, in_order
from mixerlab.records.text import captions_page, escape_markdown
from mixerlab.sweeps.figures.comparison import comparison
from mixerlab.sweeps.figures.sheet import FORMATS, caption_of, check_width, save
from mixerlab.sweeps.report.report import WIDTH
from mixerlab.sweeps.tables.collect import rows_of
from mixerlab.sweeps.tables.notes import unreadable
from mixerlab.sweeps.tables.published import Pair, distance, pairs_of, read_published

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "published"
FAR = 0.05  # of an accuracy: a larger difference from the published one wants a reason
TITLES = {"means": "Means over a task's settings", "settings": "Single settings"}


def compare(
    source: str | Path, published: Path, out: Path, selection: Selection = "official", width: float | None = None
) -> str:
    """Writes table and figures of the published file NAME into `out`: `NAME.md` and `.csv`, `NAME_means.png` ...

    Args:
        source: as of `report`.
        published: a file such as those of `results/published`.
        out: the folder.
        selection: what chooses checkpoint and learning rate.
        width: of the figures in a paper, as of `report`; `NAME_captions.md` has what their titles would say.

    Returns:
        The Markdown.
    """
    check_width(width)
    numbers, frame = read_published(published), rows_of(source)
    pairs = pairs_of(frame, numbers, selection)
    check_writable(out, "--out")
    text = markdown(pairs, numbers, _remarks(frame, pairs)) + _unreadable(frame)
    replace_file(out / f"{published.stem}.md", text)
    table = pd.DataFrame(map(asdict, pairs)).drop(columns="by_seed")
    replace_file(out / f"{published.stem}.csv", table.to_csv(index=False))
    captions = {}
    for of in TITLES:
        name, shown = f"{published.stem}_{of}", [pair for pair in pairs if pair.of == of]
        if any(pair.ours is not None for pair in shown):
            figure = comparison(shown, selection, numbers.get("rates", ()), width)
            save(figure, out / name, FORMATS[:2])
            captions[name] = caption_of(figure)
    if width is not None:
        replace_file(out / f"{published.stem}_captions.md", captions_page(captions))
    return text


def _remarks(frame: pd.DataFrame, pairs: Sequence[Pair]) -> str:
    """Which mixers of ours have several configurations of one cell."""
    tasks, mixers = {pair.name.partition(" ")[0] for pair in pairs}, {pair.mixer for pair in pairs}
    ended = frame[frame["status"].isin(ENDED) & frame["task"].isin(tasks)]
    configs = ended[ended["mixer"].isin(mixers)].groupby(["mixer", "task", "setting"])["config"].nunique()
    several = sorted(set(configs[configs > 1].index.get_level_values("mixer")))
    return f" Each seed has the best of several configurations of {', '.join(several)}." if several else ""


def _unreadable(frame: pd.DataFrame) -> str:
    errors = unreadable(frame)
    return "\n".join(["", *(f"- {escape_markdown(error)}" for error in errors), ""]) if errors else ""


def markdown(pairs: Sequence[Pair], published: Mapping[str, Any], remarks: str = "") -> str:
    """A table for means and one for settings: ours, the published number in brackets, and the difference."""
    rates = f" of {', '.join(f'{rate:g}' for rate in published['rates'])}" if "rates" in published else ""
    lines = [f"Ours (each seed's best learning rate{rates}, mean over seeds), (published), difference."]
    lines += [f"Published: {published['source']}{remarks}", ""]
    if all(pair.ours is None for pair in pairs):
        names = ", ".join(dict.fromkeys(pair.name for pair in pairs))
        lines += [f"None of these published numbers has a counterpart of ours: {names}.", ""]
    for of, title in TITLES.items():
        chosen = [pair for pair in pairs if pair.of == of]
        if any(pair.ours is not None for pair in chosen):
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
    text = f"Complete: {number} of {len(pairs)}."
    if rmse is not None:
        differences = [pair.ours - pair.published for pair in pairs if pair.complete and pair.ours is not None]
        # Rounded: 0.55 - 0.5 is more than 0.05 in its last bit.
        far = sum(round(abs(difference), 12) > FAR for difference in differences)
        text += f" RMSE {rmse:.3f}" + (f", Spearman {spearman:.2f}" if spearman is not None else "")
        text += f". Off by more than {FAR}: {far}."
    incomplete = any(pair.done and not pair.complete for pair in pairs)
    return text + (r" \* Over k of n settings (k/n): not comparable, part of neither number." if incomplete else "")


def main(arguments: Sequence[str] | None = None) -> int:
    # SOURCE before the options: behind --published it would be taken for one of its files.
    usage = "python -m mixerlab.sweeps.report.compare SOURCE [OPTION ...]"
    parser = argparse.ArgumentParser(usage=usage, description=__doc__)
    parser.add_argument("source", help="an archive, a results folder or a rows.csv")
    parser.add_argument("--published", nargs="+", type=Path, help="default: all of results/published in a checkout")
    parser.add_argument("--out", type=Path, default=Path("results/compare"), help="default: results/compare")
    parser.add_argument("--selection", choices=SELECTIONS, default="official")
    parser.add_argument("--width", type=float, metavar="INCHES", help=WIDTH)
    args = parser.parse_args(arguments)
    try:
        for published in args.published or sorted(PUBLISHED.glob("*.json")):
            print(compare(args.source, published, args.out, args.selection, args.width))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"tables and figures: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
