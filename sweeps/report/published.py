"""Published accuracies and ours, number by number, and how far apart they are."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pandas as pd

from mixerlab.records.best import ENDED, Selection
from mixerlab.sweeps.tables.collect import Cell, best_per_cell

FAR = 0.05  # of an accuracy: a larger difference from the published one wants a reason


def is_far(difference: float) -> bool:
    """Whether two accuracies differ by more than `FAR`."""
    return round(abs(difference), 12) > FAR  # rounded: 0.55 - 0.5 is more than 0.05 in its last bit


@dataclass(frozen=True)
class Pair:
    """A published accuracy and ours, over the `done` of `total` settings that it is a mean of; None: we have none.

    Of a single setting, `by_seed` are ours of each seed.
    """

    of: str  # "means" or "settings"
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


def read_published(path: str | Path) -> dict:
    """One file of `results/published`; `ValueError` where it is none."""
    try:
        published = json.loads(Path(path).read_text())
        for table in ("means", "settings"):
            for name, values in published.get(table, {}).items():
                if name != "columns" and len(values) != len(published[table]["columns"]):
                    raise ValueError(f"{table}, {name}: {len(values)} numbers for its columns")
                if name != "columns" and (wrong := [one for one in values if not _is_accuracy(one)]):
                    raise ValueError(f"{table}, {name}: {wrong[0]!r} must be an accuracy in [0, 1], or null")
                if table == "means" and name != "columns" and type(published["over"].get(name)) is not list:
                    raise ValueError(f"over, {name}: it must list the settings that the mean is over")
        if not isinstance(published["source"], str):
            raise ValueError("source must say where the numbers are from")
        if "rates" in published and not _are_rates(published["rates"]):
            raise ValueError("rates must be a list of learning rates")
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): give a file of results/published") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is no table of published numbers ({error}): see results/published/README.md"
        ) from error
    return published


def _is_accuracy(given: object) -> bool:
    return given is None or (isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given <= 1)


def _are_rates(given: object) -> bool:
    return isinstance(given, list) and bool(given) and all(type(one) in (int, float) and one > 0 for one in given)


def scores_by_seed(
    frame: pd.DataFrame, selection: Selection = "official", rates: Collection[float] = ()
) -> dict[Cell, dict[int, float]]:
    """Our accuracy of each cell and seed as a paper with one seed finds it: at the seed's best learning rate.

    The report's tables have one learning rate for all seeds of a cell. Where recall comes in a jump, and at another
    rate for each seed, that is lower. A seed that has fewer rates than another of its cell is left out. One that
    diverged at all of its rates counts as 0.

    Args:
        rates: only these learning rates count, and a seed without a configuration that has all of them is left out.
            Empty: all that it has.
    """
    ended = frame[frame["status"].isin(ENDED)]
    if rates:
        ended = ended[ended["lr"].isin(rates)]
    cell = ["mixer", "task", "setting"]
    tried = ended.drop_duplicates([*cell, "seed", "config", "lr"]).groupby([*cell, "seed"]).size()
    of_one = ended.groupby([*cell, "seed", "config"])["lr"].nunique().groupby([*cell, "seed"]).max()
    whole = set(tried[(tried == tried.groupby(level=cell).transform("max")) & (of_one >= len(set(rates)))].index)
    found = defaultdict[Cell, dict[int, float]](dict)
    for seed, of_seed in ended.groupby("seed"):
        for best in best_per_cell(of_seed, selection).itertuples():
            if (key := (best.mixer, best.task, best.setting)) + (seed,) in whole:
                found[key][seed] = best.accuracy if best.n else 0.0
    return dict(found)


def pairs_of(
    frame: pd.DataFrame, published: dict, selection: Selection = "official", all_rates: bool = False
) -> list[Pair]:
    """Each published number with ours (`scores_by_seed`), over the settings that the published one is over.

    Of our learning rates those count that the published numbers are the best of; with `all_rates`, all.
    """
    ours = scores_by_seed(frame, selection, () if all_rates else published.get("rates", ()))
    made = []
    for of in ("means", "settings"):
        table = published.get(of, {"columns": []})
        for name, values in table.items():
            if name == "columns":
                continue
            task, _, setting = name.partition(" ")
            over = [setting] if setting else published["over"][task]
            for mixer, value in zip(table["columns"], values, strict=True):
                if value is None:
                    continue
                done = [ours[mixer, task, one].values() for one in over if (mixer, task, one) in ours]
                mean = fmean(map(fmean, done)) if done else None
                by_seed = tuple(done[0]) if setting and done else ()
                made.append(Pair(of, name, mixer, value, mean, len(done), len(over), by_seed))
    return made


def distance(pairs: Iterable[Pair]) -> tuple[int, float | None, float | None]:
    """How many numbers are complete, and over those the RMSE and Spearman's rank correlation."""
    both = pd.DataFrame([(pair.ours, pair.published) for pair in pairs if pair.complete], columns=["ours", "published"])
    if both.empty:
        return 0, None, None
    rmse = ((both["ours"] - both["published"]) ** 2).mean() ** 0.5
    ranks = both.rank()
    enough = len(both) > 2 and (ranks.nunique() > 1).all()
    return len(both), float(rmse), float(ranks["ours"].corr(ranks["published"])) if enough else None
