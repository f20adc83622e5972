"""From replicas to cells: what the best learning rate of each (column, task, setting) reached."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

import pandas as pd

from mixerlab.records.best import ENDED, Selection, best_trial
from mixerlab.records.names import place_rank
from mixerlab.records.schema import ACCURACY, Score
from mixerlab.sweeps.tables.columns import Column, columns_in_order
from mixerlab.sweeps.tables.intervals import solved_counts

Place = tuple[Column, str, str]  # column, task, setting
Row = dict[str, Any]
CELL_COLUMNS = (
    *("column", "mixer", "task", "setting", "status", "score", "mean", "n", "by_seed"),
    *("lr", "config", "num_params", "state_size", "replicas", "seeds", "lacking", "edge", "configs"),
    *("solved", "known", "steps_to_90", "learned", "chance", "by_code"),
)


def best_per_cell(frame: pd.DataFrame, selection: Selection = "official", all_known: bool = False) -> pd.DataFrame:
    """One row per (column, task, setting): what the best learning rate (`best_trial`) reached.

    Every column stands against every (task, setting) that any of them has. A diverged replica has no score.

    Args:
        frame: as `spread_out` gives it, or as `collect` does: then a mixer is a column.
        all_known: no run is absent from the frame: the learning rates of a cell are those of its own rows, whatever
            other cells have (`lacking_rates`).

    The columns are described in `sweeps.tables.columns`; `configs` counts the configurations that competed.
    """
    groups: dict[Place, list[Row]] = {}
    scores: dict[Any, Score] = {}  # by task, and by (task, setting)
    known = without_repeats(frame[frame["mixer"].notna()])
    for row in known.to_dict("records"):
        column = row["column"] if "column" in row else Column(row["mixer"])
        groups.setdefault((column, row["task"], row["setting"]), []).append(row)
        if isinstance(row["score"], str):  # a run that has not ended says nothing of it
            score = Score(row["score"], bool(row["higher_is_better"]))
            scores |= {row["task"]: score, (row["task"], row["setting"]): score}
    columns = columns_in_order(place[0] for place in groups)
    problems = sorted({place[1:] for place in groups}, key=place_rank)
    chance = pd.to_numeric(known.get("chance", pd.Series(dtype=float)), errors="coerce")
    chances = chance.groupby([known["task"], known["setting"]]).first()
    lacking = lacking_rates(groups, all_known)
    cells = []
    for task, setting in problems:
        for column in columns:
            place = column, task, setting
            score = scores.get(place[1:], scores.get(task, ACCURACY))
            cell = _cell(groups.get(place, []), selection, score)
            if cell["n"] and column.value("optimizer.lr") is None:  # else each column has one rate, and so lacks none
                cell["lacking"] = lacking.get(place, ())
            cell["edge"] = cell["edge"] and not cell["lacking"]
            labels = {"column": column, "mixer": column.mixer, "task": task, "setting": setting}
            cells.append(labels | cell | {"chance": float(chances.get((task, setting), math.nan))})
    return pd.DataFrame(cells, columns=list(CELL_COLUMNS))


def of_columns_with_runs(cells: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """The cells, but for columns without a run on any of these tasks in the frame, not even a planned one."""
    return cells[cells["column"].isin(frame.loc[frame["task"].isin(cells["task"]), "column"])]


def without_repeats(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with one row for each configuration, learning rate and seed: of several the newest that finished."""
    order = ["finished", *({"started_at"} & set(frame)), "run_id"]
    same = [key for key in ("mixer", "column", "task", "setting", "config", "lr", "seed") if key in frame]
    told = frame[[*same, *order[1:]]].assign(finished=frame["status"] == "finished")
    newest_last = told.sort_values(order, na_position="first")
    return frame[~newest_last.duplicated(same, keep="last").reindex(frame.index)]


def _cell(rows: list[Row], selection: Selection, score: Score) -> Row:
    statuses = Counter(row["status"] for row in rows)
    finished = statuses["finished"]
    ended = [row for row in rows if row["status"] in ENDED]
    cell: Row = {
        "status": "diverged" if statuses["diverged"] else "failed" if statuses["failed"] else "missing",
        "score": score,
        "mean": None,
        "n": 0,
        "by_seed": {},
        "seeds": len({row["seed"] for row in rows}),
        "lacking": (),
        "edge": False,
        "configs": len({row["config"] for row in ended}),
        "learned": None,
        "by_code": (),
        "replicas": [],
    } | solved_counts(row.get("steps_to_90", math.nan) for row in ended)
    if not finished:
        return cell
    best, edge = best_trial(rows, selection, score)
    by_seed = {row["seed"]: row[f"{selection}_{score.name}"] for row in best}
    learned = solved_counts(row.get("steps_to_90", math.nan) for row in best)
    return cell | {
        "status": "ok" if finished == len(rows) else "partial",
        "mean": fmean(by_seed.values()),
        "n": len(best),
        "by_seed": by_seed,
        "edge": edge,
        "learned": learned["solved"] / learned["known"] if learned["known"] else None,
        "by_code": _seeds_by_code(best),
        **{key: best[0][key] for key in ("lr", "config", "num_params", "state_size")},
        "replicas": [(row["run_id"], int(row["replica"])) for row in best],
    }


def _seeds_by_code(rows: Iterable[Mapping[str, Any]]) -> tuple[tuple[int, ...], ...]:
    """The seeds that each version of the code trained; a record that says nothing of its code is of another version."""
    seeds = defaultdict[tuple, list[int]](list)
    for row in rows:
        seeds[tuple(str(row[key]) for key in sorted(row) if key.startswith("code_version."))].append(row["seed"])
    return tuple(map(tuple, seeds.values()))


def lacking_rates(groups: Mapping[Place, Iterable[Mapping[str, Any]]], all_known: bool) -> dict[Place, tuple]:
    """The learning rates that each cell should have and has not tried: at which no run ended, not even by divergence.

    It should have those of its own runs, also of such as failed, are unfinished, damaged or missing; and those that
    another cell of its row (the same task, setting and optimizer) has tried, if more than half of all cells with this
    optimizer have, or all others of the row, two at least. This stands in for what a deleted run would say, and does
    not count where all runs are known. A rate that few cells have is one that they were given later, since their grids
    were to be wider: the others do not lack it.
    """
    planned, tried = defaultdict[tuple, set[float]](set), defaultdict[tuple, set[float]](set)
    for place, rows in groups.items():
        for row in rows:
            planned[place, row["optimizer"]].add(row["lr"])
            if row["status"] in ENDED:
                tried[place, row["optimizer"]].add(row["lr"])
    number = Counter(optimizer for _, optimizer in tried)
    cells_with = Counter((optimizer, lr) for (_, optimizer), rates in tried.items() for lr in rates)
    in_row = Counter((*place[1:], optimizer) for place, optimizer in tried)
    row_with = Counter((*place[1:], optimizer, lr) for (place, optimizer), rates in tried.items() for lr in rates)
    usual = defaultdict[tuple, set[float]](set)
    for (task, setting, optimizer, lr), count in row_with.items():
        if 2 * cells_with[optimizer, lr] > number[optimizer] or count == in_row[task, setting, optimizer] - 1 > 1:
            usual[task, setting, optimizer].add(lr)
    lacking = defaultdict[Place, set[float]](set)
    for (place, optimizer), rates in tried.items():
        own = planned[place, optimizer] | (set() if all_known else usual[*place[1:], optimizer])
        lacking[place] |= own - rates
    return {place: tuple(sorted(rates)) for place, rates in lacking.items()}
