"""Makes tables and figures from the records in a results folder: `mixerlab report [SOURCE]`."""

import argparse
import json
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pandas as pd

from mixerlab.records.atomic import remove_leftovers, replace_file
from mixerlab.records.best import ENDED, SELECTIONS, Selection, check_selection
from mixerlab.records.claims import claim, holder
from mixerlab.records.files import check_writable
from mixerlab.records.named import Configs, read_sweep, sweep_report
from mixerlab.records.names import has_other_test_length, is_challenge
from mixerlab.records.text import captions_page, one_line
from mixerlab.sweeps.figures.marks import CHOSEN
from mixerlab.sweeps.figures.report_figures import report_figures
from mixerlab.sweeps.figures.sheet import FORMATS, check_width, save
from mixerlab.sweeps.tables import writers
from mixerlab.sweeps.tables.cells import best_per_cell, of_columns_with_runs
from mixerlab.sweeps.tables.collect import collect, rows_of, unpacked
from mixerlab.sweeps.tables.notes import notes_of
from mixerlab.sweeps.tables.swept import only_where, spread_out
from mixerlab.sweeps.tables.tables import Table, setting_table, task_table

WIDTH = "of figures in a paper, such as 5.5: without titles, which go into a file (default: 6.75, with titles)"
PATIENCE = 60.0  # seconds that a report waits for another one of the same folder
WRITTEN = "written.json"  # the files of a report: the next one in its folder removes those that it does not have


def report(
    sources: Sequence[str | Path],
    out: str | Path,
    configs: Configs | None = None,
    selections: Sequence[Selection] = SELECTIONS,
    where: Collection[str] = (),
    by: Collection[str] | None = None,
    formats: Sequence[str] = ("png",),
    width: float | None = None,
) -> str:
    """Writes the tidy rows, the tables of each selection and the figures into `out`, in place of an earlier report.

    Returns the main tables as text for a terminal. All figures are of the first selection, and those that it changes of
    each (`report_figures`).

    Args:
        sources: folders that hold `runs/` and archives of records; or the `rows.csv` of a report, which has no training
            curves.
        configs: only these runs of one folder, by `run_id`; those without a record show up as missing. None: all.
        where: only records that meet every `KEY=VALUE` (`only_where`).
        by: the keys whose values have columns of their own; None: those that were swept.
        width: of the figures in a paper, in inches: their titles go into `captions.md`. None: for the screen.

    Raises:
        ValueError: there is nothing to report, `out` cannot be written or holds the rows that are read, or no figure
            can have this width.
    """
    check_width(width)
    out, source = Path(out), Path(sources[0])
    if source.resolve() == (out / "rows.csv").resolve():
        raise ValueError(f"{source} is what the report would write over: give another --out")
    names: list[str] = []

    def write(name: str, text: str) -> None:
        replace_file(out / name, text)
        names.append(name)

    with ExitStack() as stack:
        folders = [stack.enter_context(unpacked(each)) for each in sources]
        frame = rows_of(*sources) if configs is None else collect(sources[0], configs)
        frame = only_where(frame, where)
        spread = _spread(frame, source, by)
        check_writable(out, "--out")
        with claim(out, patience=PATIENCE) as alone:
            if not alone:
                raise ValueError(f"{out} is being written by {holder(out)}: try again")
            for written in (out, *(out / selection for selection in selections)):
                remove_leftovers(written)
            write("rows.csv", writers.rows_csv(frame))
            if (cost := writers.cost_markdown(spread)) is not None:
                write("cost.md", cost)
            texts = []
            for selection in selections:
                cells = best_per_cell(spread, selection)
                tables, benchmark = tables_of(spread, cells)
                for name, table in tables.items():
                    if name != "settings":
                        head = f"## {name}, {selection} selection: {CHOSEN[selection]}\n"
                        texts += [head, writers.to_markdown(table, one_line)]
                    write(f"{selection}/{name}.md", writers.to_markdown(table))
                    write(f"{selection}/{name}.csv", writers.to_csv(table))
                    write(f"{selection}/{name}.tex", writers.to_latex(table))
                if (solved := writers.solved_markdown(cells, benchmark)) is not None:
                    write(f"{selection}/solved.md", solved)
                is_first = selection == selections[0]
                captions = {}
                for name, figure in report_figures(folders, spread, cells, benchmark, selection, width, is_first):
                    captions[name] = str(figure.get_label())
                    names += [f"{selection}/{path.name}" for path in save(figure, out / selection / name, formats)]
                if width is not None and captions:
                    write(f"{selection}/captions.md", captions_page(captions))
            _remove_others(out, names)
    return "\n".join(texts)


def folder_for(source: str | Path, name: str) -> Path:
    """Where what is made of a source goes by default: into its folder, or beside its file."""
    source = Path(source)
    return (source.parent if source.is_file() else source) / name


def table(
    source: str | Path = "results",
    name: str | None = None,
    selection: Selection = "official",
    where: Collection[str] = (),
    by: Collection[str] | None = None,
) -> pd.DataFrame:
    """A table of `report` as a frame of the same texts, marks included; its `attrs["notes"]` say what they mean.

    Args:
        source: a results folder, an archive of records, or the `rows.csv` of a report.
        where: only records that meet every `KEY=VALUE`, such as `["mixer=attn,gdn", "model.d_model=64"]`.
        by: the keys whose values have columns of their own beside the mixer's; None: those that were swept.
        name: `accuracy` or another score, `challenge` or `settings`; None: the first that there is.
        selection: what chooses checkpoint and learning rate.

    Raises:
        ValueError: there is nothing to report, or no such table or selection.
    """
    check_selection(selection)
    spread = _spread(only_where(rows_of(source), where), source, by)
    tables, _ = tables_of(spread, best_per_cell(spread, selection))
    if (name := name or next(iter(tables))) not in tables:
        raise ValueError(f"{source} has no table {name!r}; there are: {', '.join(tables)}")
    return writers.to_frame(tables[name])


def _spread(frame: pd.DataFrame, source: str | Path, by: Collection[str] | None) -> pd.DataFrame:
    spread = spread_out(frame, by)
    if spread["mixer"].isna().all():
        raise ValueError(f"{source} has no record that can be read: {'; '.join(notes_of(spread))}")
    return spread


def _remove_others(folder: Path, names: Sequence[str]) -> None:
    """What an earlier report left and this one has not written: it shows other records than `rows.csv` has."""
    with suppress(OSError, ValueError, TypeError):  # there was none, or it is not ours
        for name in set(json.loads((folder / WRITTEN).read_bytes())) - set(names):
            (folder / name).unlink(missing_ok=True)
    replace_file(folder / WRITTEN, json.dumps(names) + "\n")


def tables_of(frame: pd.DataFrame, cells: pd.DataFrame) -> tuple[dict[str, Table], pd.DataFrame]:
    """The tables of a report by name, and the cells that their means are over.

    `accuracy` (the tasks and their average) and one like it for each other score, `challenge` (the harder set by
    level), `settings` (all, of all columns). Means leave out test rows whose length differs from training, and the
    user's own settings where a named one of the task has a score. Where only own ones have, they leave out those
    without a score.
    """
    other = cells["setting_name"].map(has_other_test_length).astype(bool)
    same = cells[~(other & cells["task"].isin(cells.loc[~other, "task"]))]
    custom = same["setting_name"].str.contains("=", regex=False)  # `seq_len=64`, and no named one, `seq_len-64`
    any_scored = frame["status"].isin(ENDED).groupby([frame["task"], frame["setting"]]).any()
    scored = any_scored.loc[pd.MultiIndex.from_frame(same[["task", "setting"]])].to_numpy()
    among_named = same["task"].isin(same.loc[~custom & scored, "task"])
    left_out = (custom & among_named) | (~scored & ~among_named & same["task"].isin(same.loc[scored, "task"]))
    benchmark = same[~left_out]
    notes = []  # task, score, and what the tables that have both say
    for cell in cells.drop(same.index).itertuples():
        told = "Cells tested at another length than trained at are left out of the means: see table settings."
        notes.append((cell.task, cell.score, told))
    for cell in same[left_out].itertuples():
        why = "own sizes" if "=" in cell.setting else "no score"
        notes.append((cell.task, cell.score, f"{cell.task} {cell.setting}: {why}, left out of the means."))
    sizes = benchmark[benchmark["setting"].str.contains("=", regex=False)]
    for (task, score), own in sizes.groupby(["task", "score"], sort=False):
        if (count := own["setting"].nunique()) > 1:
            notes.append((task, score, f"{task}: the mean of {count} settings of your own; table settings has each."))
    harder = benchmark["task"].map(is_challenge).astype(bool)
    by_score = benchmark[~harder].groupby("score", sort=False)
    parts = {score.name: (task_table, of_columns_with_runs(own, frame)) for score, own in by_score}
    if harder.any():
        parts["challenge"] = setting_table, of_columns_with_runs(benchmark[harder], frame)
    parts["settings"] = setting_table, cells
    tables, places = {}, pd.MultiIndex.from_frame(frame[["task", "setting"]])
    for name, (make, own) in parts.items():
        table, here = make(own), places.isin(pd.MultiIndex.from_frame(own[["task", "setting"]]))
        own_notes = notes_of(frame[here | frame["mixer"].isna()])
        scored = set(zip(own["task"], own["score"], strict=True))
        of_means = dict.fromkeys(note for task, score, note in notes if (task, score) in scored)
        tables[name] = replace(table, notes=(*table.notes, *own_notes, *of_means))
    return tables, benchmark


def main(arguments: Sequence[str] | None = None) -> None:
    usage = "%(prog)s [SOURCE ...] [OPTION ...]"
    parser = argparse.ArgumentParser(prog="mixerlab report", usage=usage, description=__doc__)
    add = parser.add_argument
    help_of_sources = "results folders or archives, or a rows.csv; before the options (default: results)"
    add("sources", nargs="*", default=["results"], metavar="SOURCE", help=help_of_sources)
    add("--out", help="where to write (default: report/ in the first one, beside a file, or in the folder of --sweep)")
    selections = "how checkpoint and learning rate are chosen: official, on test; clean, on validation (default: both)"
    add("--selection", choices=[*SELECTIONS, "both"], default="both", help=selections)
    add("--sweep", metavar="NAME", help="only the runs of this sweep, missing ones included")
    only = "only such records: mixer=gdn model.d_model=64,128 are those of gdn with either width; null: without the key"
    add("--where", nargs="+", default=[], metavar="KEY=VALUE", help=only)
    by = "columns by these keys and no others (default: the keys that were swept)"
    add("--by", nargs="+", metavar="KEY", help=by)
    add("--format", dest="formats", nargs="+", choices=FORMATS, default=["png"], help="of the figures (default: png)")
    add("--width", type=float, metavar="INCHES", help=WIDTH)
    args = vars(parser.parse_args(arguments))
    sweep, selection, source = args.pop("sweep"), args.pop("selection"), args["sources"][0]
    if sweep and len(args["sources"]) > 1:
        raise ValueError(f"--sweep {sweep}: give one SOURCE, the results folder of that sweep")
    if sweep:
        args |= {"configs": read_sweep(source, sweep), "out": args["out"] or sweep_report(source, sweep)}
    out = args["out"] = Path(args["out"] or folder_for(source, "report"))
    print(report(selections=SELECTIONS if selection == "both" else (selection,), **args))
    print(f"tables and figures: {out}")
