"""From replicas to cells: what the best learning rate of each (column, task, setting) reached."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from mixerlab.records.best import ENDED, Selection, best_trial
from mixerlab.records.names import place_rank
from mixerlab.records.schema import ACCURACY, Score
from mixerlab.sweeps.tables.columns import Column, columns_in_order
from mixerlab.sweeps.tables.intervals import solved_counts
from mixerlab.sweeps.tables.swept import as_yaml
from mixerlab.sweeps.tables.tables import seeds_entry

CELL = ["column", "task", "setting"]
Row = dict[str, Any]


def at_best_rate(
    frame: pd.DataFrame, by: Sequence[str], selection: Selection = "official", score: Score = ACCURACY
) -> pd.DataFrame:
    """The finished rows at the best learning rate (`best_trial`) of each group of rows that are alike in `by`.

    If `by` names a cell, the rate is one for all its seeds; if it names the seed too, each seed has its own.
    """
    groups = (own.to_dict("records") for _, own in frame.groupby(list(by), sort=False))
    best = [row for rows in groups for row in best_trial(rows, selection, score)[0]]
    return pd.DataFrame(best, columns=frame.columns)


def best_per_cell(frame: pd.DataFrame, selection: Selection = "official") -> pd.DataFrame:
    """One row per (column, task, setting): what the best learning rate (`best_trial`) reached.

    Every column stands against every (task, setting) that any of them has. A diverged replica has no score.
    `sweeps.tables.columns` describes `frame` and what is returned; `configs` counts the configurations that competed.
    """
    groups: dict[tuple[Column, str, str], list[Row]] = {}
    scores: dict[Any, Score] = {}  # by task, and by (task, setting)
    names: dict[tuple[str, str], str] = {}  # of settings, by (task, setting)
    known = without_repeats(frame[frame["mixer"].notna()])
    for row in known.to_dict("records"):
        groups.setdefault((row["column"], row["task"], row["setting"]), []).append(row)
        names[row["task"], row["setting"]] = row["setting_name"]
        if isinstance(row["score"], str):  # a run that has not ended says nothing of it
            score = Score(row["score"], bool(row["higher_is_better"]))
            scores |= {row["task"]: score, (row["task"], row["setting"]): score}
    columns = columns_in_order(place[0] for place in groups)
    problems = sorted({place[1:] for place in groups}, key=place_rank)
    chance = pd.to_numeric(known.get("chance", pd.Series(dtype=float)), errors="coerce")
    chances = chance.groupby([known["task"], known["setting"]]).first()
    cells = []
    for task, setting in problems:
        for column in columns:
            score = scores.get((task, setting), scores.get(task, ACCURACY))
            cell = _cell(groups.get((column, task, setting), []), selection, score)
            labels = {"column": column, "mixer": column.mixer, "task": task, "setting": setting}
            labels |= {"setting_name": names[task, setting], "chance": float(chances.get((task, setting), math.nan))}
            cells.append(labels | cell)
    return pd.DataFrame(cells)


def of_columns_with_runs(cells: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """The cells, but for columns without a run on any of these tasks in the frame, not even a planned one."""
    return cells[cells["column"].isin(frame.loc[frame["task"].isin(cells["task"]), "column"])]


def without_repeats(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with one row for each configuration, learning rate and seed: of several the newest that ended."""
    same = [*CELL, "config", "lr", "seed"]
    order = ["ended", *(key for key in ("started_at", "run_id") if key in frame)]
    newest_last = frame.assign(ended=frame["status"].isin(ENDED)).sort_values(order, na_position="first")
    return frame.loc[newest_last.drop_duplicates(same, keep="last").index.sort_values()]


def _cell(rows: list[Row], selection: Selection, score: Score) -> Row:
    ended = [row for row in rows if row["status"] in ENDED]
    best, edge = best_trial(rows, selection, score)
    statuses = {row["status"] for row in rows}
    unscored = next((status for status in ("diverged", "failed") if status in statuses), "missing")
    # No run ended there, not even by divergence.
    lacking = {row["lr"] for row in rows} - {row["lr"] for row in ended} if best else set()
    by_seed = {row["seed"]: row[f"{selection}_{score.name}"] for row in best}
    best_trials = [(row["config"], row["lr"]) for row in best[:1]]
    by_code, seeds = _seeds_by_code(best), len({row["seed"] for row in rows})
    learned = solved_counts(row.get("steps_to_90", math.nan) for row in best)
    sees_future = any(as_yaml(row.get("sees_future")) == "true" for row in best)  # no score to be the best of
    entry = replace(
        seeds_entry(by_seed, whole=len(best) == seeds and not sees_future),
        status="ok" if best else unscored,
        score=score,
        comparable=not lacking and len(by_code) < 2,
        edges=int(edge and not lacking),
        learned=learned["solved"] / learned["known"] if learned["known"] else None,
    )
    return {
        "score": score,
        "entry": entry,
        "mean": entry.mean,
        "n": len(best),
        "seeds": seeds,
        "diverged": sum(row["status"] == "diverged" and (row["config"], row["lr"]) in best_trials for row in rows),
        "lacking": tuple(sorted(lacking)),
        "unscored": tuple(sorted({row["lr"] for row in rows if row["status"] != "finished"} - lacking)),
        "configs": len({row["config"] for row in ended}),
        "by_code": by_code,
        "replicas": [(row["run_id"], int(row["replica"])) for row in best],
        **{key: best[0][key] if best else None for key in ("lr", "config", "num_params", "state_size")},
        **solved_counts(row.get("steps_to_90", math.nan) for row in ended),
    }


def _seeds_by_code(rows: Iterable[Mapping[str, Any]]) -> tuple[tuple[int, ...], ...]:
    """The seeds that each version of the code trained; a record that says nothing of its code is of another version."""
    seeds = defaultdict[tuple, list[int]](list)
    for row in rows:
        seeds[tuple(str(row[key]) for key in sorted(row) if key.startswith("code_version."))].append(row["seed"])
    return tuple(map(tuple, seeds.values()))
