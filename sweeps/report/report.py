"""Makes tables and figures from the records in a results folder: `mixerlab report [SOURCE]`."""

import atexit
import gc
import json
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from mixerlab.records.atomic import read_bytes, remove_leftovers, replace_file
from mixerlab.records.best import Selection
from mixerlab.records.claims import claim, holder
from mixerlab.records.files import RECORD_FILE, check_writable
from mixerlab.records.named import LARGEST_NOTE, Configs, checked_configs
from mixerlab.records.names import is_challenge, is_custom
from mixerlab.records.text import captions_page
from mixerlab.sweeps.figures import canvas
from mixerlab.sweeps.figures.canvas import FORMATS, WIDTHS, Layout
from mixerlab.sweeps.figures.of_report import FIGURES, SWEPT, figures_of
from mixerlab.sweeps.report.options import parse_options
from mixerlab.sweeps.report.page import Part, page
from mixerlab.sweeps.tables.collect import best_per_cell, check_results_dir, collect, complaints
from mixerlab.sweeps.tables.keys import Swept, column_of, notes_of, only_where, spread_out
from mixerlab.sweeps.tables.lengths import at_length_of_training, length_table
from mixerlab.sweeps.tables.solved import solved_csv, solved_markdown
from mixerlab.sweeps.tables.sources import check_exists, has_runs, is_rows, read_rows, runs_of_sweep, unpacked
from mixerlab.sweeps.tables.table_files import intervals_csv, to_csv, to_latex, to_markdown, to_rows_csv, to_text
from mixerlab.sweeps.tables.tables import Table, setting_table, task_table

PATIENCE = 60.0  # seconds that a report waits for another one of the same folder
MOST_NAMED = 4  # files, in a line
COVERED = "covered.json"  # what the report of a sweep is about
SELECTIONS: tuple[Selection, ...] = ("official", "clean")
EXPLAINED = {
    "official": "Checkpoint with the lowest test perplexity, learning rate with the highest test accuracy.",
    "clean": "Checkpoint and learning rate chosen on validation, accuracy on test.",
}
# The names of all files beside `rows.csv`.
TABLES = ("accuracy", "challenge", "lengths", "settings")
PAGE, CAPTIONS = "report.html", "captions.md"
WRITTEN = {f"{name}{suffix}" for name in TABLES for suffix in (".md", ".csv", ".tex")}
WRITTEN |= {CAPTIONS, "solved.md", "solved.csv", *(f"{name}_intervals.csv" for name in TABLES[:-1])}
WRITTEN |= {f"{name}.{suffix}" for name in FIGURES for suffix in FORMATS}


@dataclass(frozen=True)
class Report:
    """What was written: the folder, its files, and the main tables as text for a terminal.

    `joined` are the `run_id`s of a command that ran beside the reported one (`report`, beside_those_since). `removed`
    are files of an earlier report in the same folder that this one does not have.
    """

    folder: Path
    files: list[Path]
    text: str
    joined: frozenset[str] = frozenset()
    removed: tuple[Path, ...] = ()

    def what_was_removed(self) -> str | None:
        """A line on `removed`, if there are any."""
        if not self.removed:
            return None
        names = [str(path.relative_to(self.folder)) for path in self.removed]
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return f"removed, as they were of an earlier report: {', '.join(names[:MOST_NAMED])}{more}"


def report(
    results_dir: str | Path,
    out: str | Path | None = None,
    configs: Configs | None = None,
    selections: Sequence[Selection] = SELECTIONS,
    mixers: Collection[str] = (),
    tasks: Collection[str] = (),
    where: Collection[str] = (),
    by: Collection[str] | None = None,
    beside_those_since: float | None = None,
    formats: Sequence[str] = ("png",),
    width: float = WIDTHS[2],
    bare: bool = False,
    html: bool = False,
) -> Report:
    """Writes the tidy rows, the tables of each selection and the figures into `out`, over earlier ones.

    All figures are of the first selection, and those that it changes of each (`sweeps.figures.of_report.figures_of`).

    Args:
        results_dir: the folder that holds `runs/`; or an archive of records, or the `rows.csv` of a report, which
            has no training curves.
        out: where to write; where None, `report` in that folder or beside that file.
        configs: only these runs, by `run_id`; those without a record show up as missing. All where None.
        selections: what chooses checkpoint and learning rate.
        mixers, tasks: only records of these, where any are given.
        where: only records that meet every `KEY=VALUE` (`sweeps.keys.only_where`).
        by: the keys whose values have columns, or rows, of their own; None: those that were swept.
        beside_those_since: a time (seconds since 1970). If `out` holds a report that was written since, of a sweep that
            ran beside this one, the new report shows its runs as well.
        formats: of the figures: png, pdf or svg.
        width: of the figures, in inches (`figures.canvas.Layout`).
        bare: figures without title and subtitle, which go into `captions.md`, and LaTeX tables with the legend as
            comments.
        html: also writes `report.html`, one page with all of it. Its figures need their titles: not with `bare`.

    Raises:
        ValueError: there is nothing to report, `out` cannot be written or holds the rows that are read, no figure can
            have that width, or `bare` with `html`.
    """
    layout = Layout(width, bare)
    if bare and html:
        raise ValueError("--bare leaves out the titles that figures on the page of --html need: give one of the two")
    if out is None:
        out = (Path(results_dir).parent if Path(results_dir).is_file() else Path(results_dir)) / "report"
    out = Path(out)
    check_exists(results_dir)
    if (out / "rows.csv").exists() and Path(results_dir).is_file() and (out / "rows.csv").samefile(results_dir):
        raise ValueError(f"{results_dir} is what the report would write over: give another --out")
    if configs is None and not Path(results_dir).is_file() and not has_runs(results_dir):
        check_results_dir(results_dir)
        if (Path(results_dir) / RECORD_FILE).exists():
            whole = Path(results_dir).resolve().parents[1]
            raise ValueError(f"{results_dir} is a single run: name its results folder, {whole}")
        raise ValueError(f"no records in {Path(results_dir) / 'runs'}: train something first, or name another folder")
    check_writable(out, "--out")
    chosen = _Chosen(mixers, tasks, where, by)
    look = _Look([*formats, *(["png"] if html and "png" not in formats else [])], layout, html)
    with claim(out, patience=PATIENCE) as alone, _fewer_collections():
        if not alone:
            raise ValueError(f"{out} is being written by {holder(out)}: try again")
        remove_leftovers(out)
        own = configs
        if beside_those_since is not None:
            configs = _joined(out, configs or {}, beside_those_since)
        if is_rows(results_dir):
            return _report(None, read_rows(results_dir), out, selections, chosen, look, False)
        with unpacked(results_dir) as folder:
            made = _report(folder, collect(folder, configs), out, selections, chosen, look, configs is not None)
            return replace(made, joined=frozenset(configs or ()) - frozenset(own or ()))


@contextmanager
def _fewer_collections() -> Iterator[None]:
    """Figures are many small objects, among which Python would look for cycles all the time: a tenth of a report's."""
    before = gc.get_threshold()
    gc.set_threshold(50_000)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@dataclass(frozen=True)
class _Chosen:
    """Which records a report shows, and by which keys; as the arguments of `report`."""

    mixers: Collection[str]
    tasks: Collection[str]
    where: Collection[str]
    by: Collection[str] | None


@dataclass(frozen=True)
class _Look:
    """In what form; as the arguments of `report`."""

    formats: Sequence[str]
    layout: Layout
    html: bool


def _joined(out: Path, configs: Configs, since: float) -> Configs:
    """These runs, and those of the report in `out` if it was written since then; kept for the next one."""
    path = out / COVERED
    with suppress(Exception):  # none, or not ours: then there is nothing to join
        covered = json.loads(read_bytes(path, most=LARGEST_NOTE))
        if float(covered["written_at"]) >= since:
            configs = {**checked_configs(covered["runs"]), **configs}
    replace_file(path, json.dumps({"written_at": time.time(), "runs": configs}) + "\n")
    return configs


def _report(
    results_dir: Path | None,
    frame: pd.DataFrame,
    out: Path,
    selections: Sequence[Selection],
    chosen: _Chosen,
    look: _Look,
    all_known: bool,
) -> Report:
    frame = _only(_only(frame, "mixer", chosen.mixers), "task", chosen.tasks)
    if frame["mixer"].notna().any():
        frame = only_where(frame, chosen.where)
    swept = spread_out(frame, chosen.by)
    warnings = [*notes_of(swept), *complaints(frame, [column_of(frame, key) for key in swept.told])]
    cells = {selection: best_per_cell(swept.frame, selection, all_known) for selection in selections}
    if any(of_selection.empty for of_selection in cells.values()):
        found = "; ".join(["train something first, or name another folder", *warnings])
        raise ValueError(f"no records in {results_dir / 'runs' if results_dir else 'that file'}: {found}")
    if "optimizer.lr" in swept.told:  # each column or row has one rate, and so lacks none
        for of_selection in cells.values():
            of_selection[["lacking", "added"]] = [[(), ()]] * len(of_selection)
    files = [out / "rows.csv"]
    has_report = files[0].exists()  # without one, files of its names are the user's own
    replace_file(files[0], to_rows_csv(frame))
    parts: list[Part] = []
    for selection in selections:
        part, written = _of_selection(
            results_dir, swept, cells[selection], out / selection, selection, warnings, look,
            is_first=selection == selections[0],
        )  # fmt: skip
        parts.append(part)
        files += written
    if look.html:
        files.append(out / PAGE)
        replace_file(files[-1], page("Accuracy of sequence mixers", parts, swept.frame))
    removed = _remove_others(out, files) if has_report else ()
    sections = [
        f"## {name}, {part.selection} selection\n{EXPLAINED[part.selection]}\n\n{to_text(table)}"
        for part in parts
        for name, table in part.tables.items()
        if name != "settings"
    ]
    return Report(out, files, "\n".join(sections), removed=removed)


def _of_selection(
    results_dir: Path | None,
    swept: Swept,
    cells: pd.DataFrame,
    folder: Path,
    selection: Selection,
    warnings: Sequence[str],
    look: _Look,
    *,
    is_first: bool,
) -> tuple[Part, list[Path]]:
    """Writes the tables and, of the first selection, the figures into `folder`; gives them, and the files."""
    folder.mkdir(exist_ok=True)
    remove_leftovers(folder)
    benchmark, left_out = _benchmark_only(cells)
    tables = _tables(swept.frame, cells, benchmark, [*left_out, *warnings])
    files: list[Path] = []
    for name, table in tables.items():
        files += _write(table, folder / name, look.layout.bare)
    for name, text in (("solved.md", solved_markdown), ("solved.csv", solved_csv)):
        files.append(folder / name)
        replace_file(files[-1], text(cells))
    for name in (name for name in tables if name != "settings"):
        files.append(folder / f"{name}_intervals.csv")
        replace_file(files[-1], intervals_csv(tables[name]))
    pictures, captions = [], {}
    for name, figure in figures_of(
        results_dir, swept, cells, benchmark, selection, tables, look.layout, is_first=is_first
    ):
        drawn = canvas.save(figure, folder / name, look.formats)
        captions[name] = canvas.caption_of(figure)
        pictures += [(captions[name], path) for path in drawn if path.suffix == ".png"]
        files += drawn
    if captions and look.layout.bare:
        files.append(folder / CAPTIONS)
        replace_file(files[-1], captions_page(captions))
    heading = f"Checkpoint and learning rate chosen on {'test' if selection == 'official' else 'validation'}"
    return Part(selection, heading, EXPLAINED[selection], tables, cells, benchmark, pictures), files


def _remove_others(out: Path, files: Collection[Path]) -> tuple[Path, ...]:
    """What an earlier report left in `out` and this one has not written: it shows other records than `rows.csv` has."""
    others = [out / PAGE]
    for selection in SELECTIONS:
        swept = [path for suffix in FORMATS for path in (out / selection).glob(f"{SWEPT}*.{suffix}")]
        others += [*(out / selection / name for name in sorted(WRITTEN)), *sorted(swept)]
    removed = tuple(path for path in others if path not in files and (path.is_file() or path.is_symlink()))
    for path in removed:
        path.unlink()
    for selection in SELECTIONS:
        with suppress(OSError):  # it is not there, or not empty
            (out / selection).rmdir()
    return removed


def _only(frame: pd.DataFrame, column: str, names: Collection[str]) -> pd.DataFrame:
    if not names:
        return frame
    unknown = sorted(set(names) - set(frame[column]))
    if unknown:
        present = ", ".join(sorted(frame[column].dropna().unique()))
        raise ValueError(f"no records of {column} {', '.join(unknown)}: there are {present}")
    return frame[frame[column].isin(names) | frame[column].isna()]  # what is unreadable may be any of them


def _benchmark_only(cells: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """What means are over, and notes on what was left out.

    These are test rows whose length differs from training, and the user's own settings where the task has named ones.
    """
    same = at_length_of_training(cells)
    notes = []
    if len(same) < len(cells):
        notes = ["Cells tested at another length than they trained at are left out of the means: see table lengths."]
    custom = same["setting"].map(is_custom).astype(bool)
    left_out = custom & same["task"].isin(same.loc[~custom, "task"])
    names = same[left_out][["task", "setting"]].drop_duplicates().itertuples(index=False)
    return same[~left_out], notes + [f"{task} {setting}: own sizes, left out of the means." for task, setting in names]


def _tables(
    frame: pd.DataFrame, cells: pd.DataFrame, benchmark: pd.DataFrame, notes: Sequence[str]
) -> dict[str, Table]:
    """`accuracy` (the tasks and their average), `challenge` (the harder set by level), `lengths`, all `settings`."""
    harder = benchmark["task"].map(is_challenge).astype(bool)
    tables = {}
    if not harder.all():
        tables["accuracy"] = task_table(benchmark[~harder])
    if harder.any():
        tables["challenge"] = setting_table(benchmark[harder])
    if (by_length := length_table(frame, cells)) is not None:
        tables["lengths"] = by_length
    tables["settings"] = setting_table(cells)
    return {name: replace(table, remarks=[*table.remarks, *notes]) for name, table in tables.items()}


def _write(table: Table, stem: Path, bare: bool) -> list[Path]:
    texts = {".md": to_markdown(table), ".csv": to_csv(table), ".tex": to_latex(table, bare)}
    for suffix, text in texts.items():
        replace_file(stem.with_suffix(suffix), text)
    return [stem.with_suffix(suffix) for suffix in texts]


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse_options(__doc__, arguments)
    selections = SELECTIONS if given.selection == "both" else (given.selection,)
    try:
        made = report(
            given.source,
            given.out,
            runs_of_sweep(given.source, given.sweep) if given.sweep is not None else None,
            selections,
            mixers=given.mixer,
            tasks=given.task,
            where=given.where,
            by=given.by,
            formats=given.format,
            width=given.width,
            bare=given.bare,
            html=given.html,
        )
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(made.text)
    print(f"{len(made.files)} files in {made.folder}: rows.csv, tables and figures")
    if (removed := made.what_was_removed()) is not None:
        print(removed if given.out is not None else f"{removed} (with --out DIR a report goes elsewhere)")
    return 0


if __name__ == "__main__":
    atexit.register(gc.freeze)  # else Python looks through all objects once more before it ends
    sys.exit(main())
