"""Published accuracies and ours, number by number, and how far apart they are."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from mixerlab.records.best import ENDED, Selection
from mixerlab.sweeps.tables.cells import best_per_cell

_CELL = ["mixer", "task", "setting"]


@dataclass(frozen=True)
class Pair:
    """A published accuracy and ours, over the `done` of `total` settings that it is a mean of; None: we have none.

    Of a single setting, `by_seed` are ours of each seed.
    """

    of: str  # "means" over a task's settings, or single "settings"
    name: str  # a task, or a task and its setting
    mixer: str
    published: float
    ours: float | None
    done: int
    total: int
    by_seed: tuple[float, ...] = ()

    @property
    def complete(self) -> bool:
        return self.done == self.total


def read_published(path: str | Path) -> dict[str, Any]:
    """One file of `results/published`; `ValueError` if it is none, or has numbers that are no accuracies."""
    try:
        published = json.loads(Path(path).read_text())
        for of, name, values in _lines(published):
            if len(values) != len(published[of]["columns"]):
                raise ValueError(f"{of}, {name}: {len(values)} numbers for its columns")
            if wrong := [value for value in values if value is not None and not 0 <= value <= 1]:
                raise ValueError(f"{of}, {name}: {wrong[0]} must be an accuracy in [0, 1], or null")
            if of == "means" and not isinstance(published["over"][name], list):
                raise ValueError(f"over, {name}: it must list the settings that the mean is over")
        if not isinstance(published["source"], str) or not all(rate > 0 for rate in published.get("rates", [])):
            raise ValueError("source must say where the numbers are from, and rates list learning rates")
    except Exception as error:
        raise ValueError(f"{path} is no table of published numbers ({error!r}): see results/published") from error
    return published


def _lines(published: Mapping[str, Any]) -> list[tuple[str, str, list[float | None]]]:
    """Table, name and numbers of each line."""
    tables = [(of, name, values) for of in ("means", "settings") for name, values in published.get(of, {}).items()]
    return [line for line in tables if line[1] != "columns"]


def scores_by_seed(
    frame: pd.DataFrame, selection: Selection = "official", rates: Collection[float] = ()
) -> dict[tuple[str, str, str], dict[int, float]]:
    """Our score of each (mixer, task, setting) and seed as a paper with one seed finds it: at the seed's best rate.

    The report's tables have one learning rate for all seeds of a cell. Where recall comes in a jump, and at another
    rate for each seed, that is lower. A seed that has fewer rates than another of its cell is left out. One that
    diverged at all of its rates counts as 0.

    Args:
        frame: as `collect` gives it.
        selection: what chooses checkpoint and learning rate.
        rates: only these learning rates count, and a seed without a configuration that has all of them is left out.
            Empty: all that it has.
    """
    ended = frame[frame["status"].isin(ENDED)]
    if rates:
        ended = ended[ended["lr"].isin(rates)]
    tried = ended.drop_duplicates([*_CELL, "seed", "config", "lr"]).groupby([*_CELL, "seed"]).size()
    in_one = ended.groupby([*_CELL, "seed", "config"])["lr"].nunique().groupby([*_CELL, "seed"]).max()
    whole = set(tried[(tried == tried.groupby(level=_CELL).transform("max")) & (in_one >= len(set(rates)))].index)
    found: dict[tuple[str, str, str], dict[int, float]] = {}
    for seed, rows in ended.groupby("seed"):
        for best in best_per_cell(rows, selection).itertuples():
            place = (best.mixer, best.task, best.setting)
            if (*place, seed) in whole:
                found.setdefault(place, {})[seed] = best.mean if best.n else 0.0
    return found


def pairs_of(frame: pd.DataFrame, published: Mapping[str, Any], selection: Selection = "official") -> list[Pair]:
    """Each published number with ours (`scores_by_seed`), over the settings that the published one is over.

    Of our learning rates those count that the published numbers are the best of.
    """
    ours = scores_by_seed(frame, selection, published.get("rates", ()))
    pairs = []
    for of, name, values in _lines(published):
        task, _, setting = name.partition(" ")
        over = [setting] if setting else published["over"][task]
        for mixer, value in zip(published[of]["columns"], values, strict=True):
            if value is not None:
                done = [ours[mixer, task, one].values() for one in over if (mixer, task, one) in ours]
                mean = fmean(map(fmean, done)) if done else None
                by_seed = tuple(done[0]) if setting and done else ()
                pairs.append(Pair(of, name, mixer, value, mean, len(done), len(over), by_seed))
    return pairs


def distance(pairs: Iterable[Pair]) -> tuple[int, float | None, float | None]:
    """How many numbers are complete, and over those the RMSE and Spearman's rank correlation."""
    both = pd.DataFrame([(pair.ours, pair.published) for pair in pairs if pair.complete], columns=["ours", "published"])
    if both.empty:
        return 0, None, None
    rmse = ((both["ours"] - both["published"]) ** 2).mean() ** 0.5
    ranks = both.rank()
    enough = len(both) > 2 and (ranks.nunique() > 1).all()
    return len(both), float(rmse), float(ranks["ours"].corr(ranks["published"])) if enough else None
