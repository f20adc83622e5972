"""Makes tables and figures from the records in a results folder: `mixerlab report [SOURCE]`."""

import argparse
import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from mixerlab.records.atomic import remove_leftovers, replace_file
from mixerlab.records.best import SELECTIONS, Selection
from mixerlab.records.claims import claim, holder
from mixerlab.records.files import check_writable
from mixerlab.records.named import Configs, read_sweep
from mixerlab.records.names import is_challenge, is_custom
from mixerlab.records.text import captions_page, one_line
from mixerlab.sweeps.figures.report_figures import report_figures
from mixerlab.sweeps.figures.sheet import FORMATS, TWO_COLUMNS, WIDTHS, Layout, caption_of, save
from mixerlab.sweeps.report.page import Section, page
from mixerlab.sweeps.tables import writers
from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.collect import collect, rows_of, unpacked
from mixerlab.sweeps.tables.lengths import at_length_of_training, length_table
from mixerlab.sweeps.tables.notes import notes_of
from mixerlab.sweeps.tables.swept import only_where, spread_out
from mixerlab.sweeps.tables.tables import Table, setting_table, task_table

PATIENCE = 60.0  # seconds that a report waits for another one of the same folder
WRITTEN = "written.json"  # the files of a report: the next one in its folder removes those that it does not have
EXPLAINED = {
    "official": "Checkpoint with the lowest test perplexity, learning rate with the best test score.",
    "clean": "Checkpoint and learning rate chosen on validation, score on test.",
}


@dataclass(frozen=True)
class Report:
    """What was written: the folder, its files, and the main tables as text for a terminal."""

    folder: Path
    files: tuple[Path, ...]
    text: str


def report(
    source: str | Path,
    out: str | Path | None = None,
    configs: Configs | None = None,
    selections: Sequence[Selection] = SELECTIONS,
    mixers: Collection[str] = (),
    tasks: Collection[str] = (),
    where: Collection[str] = (),
    by: Collection[str] | None = None,
    formats: Sequence[str] = ("png",),
    layout: Layout = TWO_COLUMNS,
    html: bool = False,
) -> Report:
    """Writes the tidy rows, the tables of each selection and the figures into `out`, in place of an earlier report.

    All figures are of the first selection, and those that it changes of each (`report_figures`).

    Args:
        source: the folder that holds `runs/`; or an archive of records, or the `rows.csv` of a report, which has no
            training curves.
        out: where to write; None: `report` in that folder or beside that file.
        configs: only these runs, by `run_id`; those without a record show up as missing. None: all.
        selections: what chooses checkpoint and learning rate.
        mixers, tasks: only records of these, if any are given.
        where: only records that meet every `KEY=VALUE` (`only_where`).
        by: the keys whose values have columns of their own; None: those that were swept.
        formats: of the figures: png, pdf or svg; none: there are no figures.
        layout: of the figures. If it is bare, their titles go into `captions.md`, and the legends of LaTeX tables into
            comments.
        html: also writes `report.html`, one page with the tables, the records behind them, and the figures in png.

    Raises:
        ValueError: there is nothing to report, or `out` cannot be written or holds the rows that are read.
    """
    source = Path(source)
    out = Path(out) if out is not None else (source.parent if source.is_file() else source) / "report"
    if source.is_file() and source.resolve() == (out / "rows.csv").resolve():
        raise ValueError(f"{source} is what the report would write over: give another --out")
    with unpacked(source) as folder:
        frame = rows_of(folder) if configs is None else collect(folder, configs)
        chosen = [f"{key}={','.join(names)}" for key, names in (("mixer.name", mixers), ("task.name", tasks)) if names]
        frame = only_where(frame, [*chosen, *where])
        spread = spread_out(frame, by)
        if spread["mixer"].isna().all():
            raise ValueError(f"{source} has no record that can be read: {'; '.join(notes_of(spread))}")
        check_writable(out, "--out")
        with claim(out, patience=PATIENCE) as alone:
            if not alone:
                raise ValueError(f"{out} is being written by {holder(out)}: try again")
            for written in (out, *(out / selection for selection in selections)):
                remove_leftovers(written)
            files = _Files(out)
            files.write("rows.csv", writers.rows_csv(frame))
            sections = []
            for selection in selections:
                cells = best_per_cell(spread, selection, all_known=configs is not None)
                tables, benchmark = tables_of(spread, cells)
                _write_tables(files, selection, tables, layout.bare)
                files.write(f"{selection}/solved.md", writers.solved_markdown(cells))
                is_first = selection == selections[0]
                drawn = report_figures(folder, spread, cells, benchmark, selection, layout, is_first) if formats else ()
                pictures = _save_figures(files, selection, drawn, formats, layout.bare)
                sections.append(Section(selection, EXPLAINED[selection], tables, cells, pictures))
            if html:
                files.write("report.html", page("Sequence mixers", sections, spread))
            files.remove_others()
    texts = [
        f"## {name}, {section.selection} selection\n{section.explained}\n\n{writers.to_markdown(table, one_line)}"
        for section in sections
        for name, table in section.tables.items()
        if name != "settings"
    ]
    return Report(out, tuple(files.paths), "\n".join(texts))


class _Files:
    """The files of a report in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: list[Path] = []

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        replace_file(path, text)
        self.paths.append(path)

    def remove_others(self) -> None:
        """What an earlier report left and this one has not written: it shows other records than `rows.csv` has."""
        names = [str(path.relative_to(self.folder)) for path in self.paths]
        with suppress(OSError, ValueError, TypeError):  # there was none, or it is not ours
            for name in set(json.loads((self.folder / WRITTEN).read_text())) - set(names):
                if (path := self.folder / name).resolve().is_relative_to(self.folder.resolve()):
                    path.unlink(missing_ok=True)
        replace_file(self.folder / WRITTEN, json.dumps(names) + "\n")


def _write_tables(files: _Files, selection: Selection, tables: Mapping[str, Table], bare: bool) -> None:
    for name, table in tables.items():
        files.write(f"{selection}/{name}.md", writers.to_markdown(table))
        files.write(f"{selection}/{name}.csv", writers.to_csv(table))
        files.write(f"{selection}/{name}.tex", writers.to_latex(table, bare))


def _save_figures(
    files: _Files, selection: Selection, drawn: Iterable[tuple[str, Figure]], formats: Sequence[str], bare: bool
) -> list[tuple[str, Path]]:
    """Saves figures, and gives the captions and paths of those that a page can show."""
    captions = {}
    pictures = []
    for name, figure in drawn:
        captions[name] = caption_of(figure)
        paths = save(figure, files.folder / selection / name, formats)
        pictures += [(captions[name], path) for path in paths if path.suffix == ".png"]
        files.paths += paths
    if bare and captions:
        files.write(f"{selection}/captions.md", captions_page(captions))
    return pictures


def tables_of(frame: pd.DataFrame, cells: pd.DataFrame) -> tuple[dict[str, Table], pd.DataFrame]:
    """The tables of a report by name, and the cells that their means are over.

    `accuracy` (the tasks and their average), `challenge` (the harder set by level), `lengths` (test rows of other
    lengths), `settings` (all). Means leave out test rows whose length differs from training, and the user's own
    settings where the task has named ones.

    Args:
        frame: as `spread_out` gives it.
        cells: as `best_per_cell` gives them.
    """
    same = at_length_of_training(cells)
    custom = same["setting"].map(is_custom).astype(bool)
    left_out = custom & same["task"].isin(same.loc[~custom, "task"])
    benchmark = same[~left_out]
    notes = notes_of(frame)
    if len(same) < len(cells):
        notes.append("Cells tested at another length than trained at are left out of the means: see table lengths.")
    for task, setting in same.loc[left_out, ["task", "setting"]].drop_duplicates().itertuples(index=False):
        notes.append(f"{task} {setting}: own sizes, left out of the means.")
    harder = benchmark["task"].map(is_challenge).astype(bool)
    tables = {
        "accuracy": None if harder.all() else task_table(benchmark[~harder]),
        "challenge": setting_table(benchmark[harder]) if harder.any() else None,
        "lengths": length_table(frame, cells),
        "settings": setting_table(cells),
    }
    made = {name: replace(table, remarks=(*table.remarks, *notes)) for name, table in tables.items() if table}
    return made, benchmark


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    options = {name: getattr(args, name) for name in ("mixers", "tasks", "where", "by", "formats", "html")}
    options["selections"] = SELECTIONS if args.selection == "both" else (args.selection,)
    try:
        configs = read_sweep(args.source, args.sweep) if args.sweep else None
        made = report(args.source, args.out, configs, layout=layout_of(args), **options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(made.text)
    print(f"{len(made.files)} files in {made.folder}: rows.csv, tables and figures")
    return 0


def _parser() -> argparse.ArgumentParser:
    usage = "%(prog)s [SOURCE] [OPTION ...]"
    parser = argparse.ArgumentParser(prog="mixerlab report", usage=usage, description=__doc__)
    several: dict[str, Any] = {"nargs": "+", "default": []}
    add = parser.add_argument
    add("source", nargs="?", default="results", help="a results folder, an archive or a rows.csv; before the options")
    add("--out", help="where to write (default: report/ in that folder, or beside that file)")
    selections = "how checkpoint and learning rate are chosen: official, on test; clean, on validation (default: both)"
    add("--selection", choices=[*SELECTIONS, "both"], default="both", help=selections)
    add("--mixer", dest="mixers", **several, help="only these mixers")
    add("--task", dest="tasks", **several, help="only these tasks")
    add("--sweep", metavar="NAME", help="only the runs of this sweep, missing ones included")
    add("--where", **several, metavar="KEY=VALUE", help="only such records: model.d_model=64,128 is either")
    add(
        "--by", nargs="+", metavar="KEY", help="columns by these keys and no others (default: the keys that were swept)"
    )
    add("--format", dest="formats", nargs="+", choices=FORMATS, default=["png"], help="of the figures (default: png)")
    add("--html", action="store_true", help="also write report.html, one page with everything")
    add_layout(parser)
    return parser


def add_layout(parser: argparse.ArgumentParser) -> None:
    """The options that `layout_of` reads."""
    width = parser.add_mutually_exclusive_group()
    width.add_argument(
        "--width", type=float, metavar="INCHES", help=f"of figures: 5.5 for NeurIPS (default: {WIDTHS[2]})"
    )
    width.add_argument("--columns", type=int, choices=WIDTHS, default=2, help="width of figures in columns of ICML")
    parser.add_argument("--bare", action="store_true", help="no titles in figures, no notes below LaTeX tables")


def layout_of(args: argparse.Namespace) -> Layout:
    """How figures are to look; `ValueError` for a width that none can have."""
    return Layout(args.width if args.width is not None else WIDTHS[args.columns], args.bare)


if __name__ == "__main__":
    sys.exit(main())
