"""Published accuracies (`published.yaml`, or a file of one's own) and ours, number by number, and how far apart."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml

from mixerlab.records.best import ENDED, Selection
from mixerlab.records.errors import reason
from mixerlab.records.schema import ACCURACY
from mixerlab.sweeps.tables.cells import CELL, at_best_rate, without_repeats
from mixerlab.sweeps.tables.tables import mean_of, seeds_entry

KNOWN = Path(__file__).with_suffix(".yaml")
# How ours are chosen: each seed's best learning rate, on test or on validation; or the accuracy of the last epoch, at
# the one rate of each task that is the best for all mixers together.
Rule = Literal["official", "clean", "last"]
Settings = dict[tuple[str, str], tuple[str, ...]]  # by task and setting of a number, what it is the mean over


@dataclass(frozen=True)
class Published:
    """A published table.

    Attributes:
        about: its title, where it is from, what is known of its training and how it was checked, in sentences.
        rates: the learning rates that its numbers are the best of, where ours count too; else empty.
        numbers: accuracies by task, setting and mixer; without a setting ("") they are means over the task's settings.
        over: the settings of each task that a mean is over.
    """

    title: str
    about: str
    rates: tuple[float, ...]
    numbers: pd.Series
    over: Mapping[str, tuple[str, ...]]


def read_published(path: str | Path = KNOWN) -> dict[str, Published]:
    """The tables of a file by name; `published.yaml` says how one is written."""
    try:
        content = yaml.safe_load(Path(path).read_text())
        over = content["over"] if "over" in content else read_published().popitem()[1].over
        over = {task: tuple(map(str, settings)) for task, settings in over.items()}
        return {str(name): _table(str(name), table, over) for name, table in content["tables"].items()}
    except Exception as error:
        form = "tables: {NAME: {means: {MIXER: {TASK: ACCURACY}}}}, as mixerlab/sweeps/tables/published.yaml has"
        raise ValueError(f"{path}: {reason(error)}; it must have {form}") from error


def _table(name: str, table: Mapping[str, Any], over: Mapping[str, tuple[str, ...]]) -> Published:
    numbers: dict[tuple[str, str, str], float] = {}
    for kind in ("means", "settings"):
        for mixer, row in table.get(kind, {}).items():
            for text, value in row.items():
                if not (isinstance(value, int | float) and 0 <= value <= 1):
                    raise ValueError(f"{name}, {mixer}, {text}: {value!r} must be an accuracy in [0, 1]")
                task, _, setting = text.partition(" ")
                if not setting if kind == "settings" else text not in over:
                    raise ValueError(f"{name}, {mixer}, {text}: this is no name of {kind}")
                numbers[task, setting, mixer] = float(value)
    title, source, recipe, checked = (str(table.get(key, "")) for key in ("title", "source", "recipe", "checked"))
    parts = (("", ", ".join(filter(None, (title, source)))), ("Recipe: ", recipe), ("Checked: ", checked))
    about = " ".join(f"{before}{text}." for before, text in parts if text)
    accuracies = pd.Series(numbers.values(), pd.MultiIndex.from_tuples(numbers, names=["task", "setting", "mixer"]))
    return Published(title, about, tuple(map(float, table.get("rates", ()))), accuracies, over)


def averaged_settings(tables: Iterable[Published]) -> Settings:
    """What each number of any table is the mean over. ValueError if that differs between tables."""
    settings: Settings = {}
    for table in tables:
        for task, setting in table.numbers.index.droplevel("mixer"):
            over = (setting,) if setting else table.over[task]
            if set(settings.setdefault((task, setting), over)) != set(over):
                told = f"{name_of(task, setting)}: {table.title} has the mean over other settings than another table"
                raise ValueError(f"{told}, over {', '.join(over)}: name it alone after --published")
    return settings


def ours(frame: pd.DataFrame, settings: Settings, rule: Rule = "official", rates: Collection[float] = ()) -> pd.Series:
    """An `Entry` for each of these numbers, of every column that has a part of it; by task, setting and column.

    Of `rates`, if there are any, only these count, and a seed that lacks one is left out.
    """
    frame = frame[frame["score"] == ACCURACY.name]
    by_cell = {}
    if not frame.empty:
        scores = at_rate_of_task(frame, rates) if rule == "last" else scores_by_seed(frame, rule, rates)
        by_cell = {cell: own.droplevel(CELL).to_dict() for cell, own in scores.groupby(level=CELL, sort=False)}
    found = {}
    for (task, setting), over in settings.items():
        for column in dict.fromkeys(column for column, its_task, _ in by_cell if its_task == task):
            by_setting = [by_cell.get((column, task, part), {}) for part in over]
            if any(by_setting):
                found[task, setting, column] = mean_of(map(seeds_entry, by_setting))
    index = pd.MultiIndex.from_tuples(found, names=["task", "setting", "column"])
    return pd.Series(found.values(), index, dtype=object)


def name_of(task: str, setting: str) -> str:
    """What a number is called: `mem`, or `mem baseline`."""
    return f"{task} {setting}".strip()


def scores_by_seed(frame: pd.DataFrame, selection: Selection = "official", rates: Collection[float] = ()) -> pd.Series:
    """Our accuracy as a paper with one seed finds it, at the seed's best rate; by column, task, setting and seed.

    The report's tables have one learning rate for all seeds of a cell. Where recall comes in a jump, and at another
    rate for each seed, that is lower. A seed that has fewer rates than another of its cell is left out. One that
    diverged at all of its rates counts as 0. Of `rates`, if there are any, only these count, and a seed without a
    configuration that has all of them is left out.
    """
    ended = _ended(frame, rates)
    tried = ended.groupby([*CELL, "seed", "config"], sort=False)["lr"].nunique()
    by_seed = tried.groupby(level=[*CELL, "seed"], sort=False).agg(["sum", "max"])
    most = by_seed["sum"].groupby(level=CELL, sort=False).transform("max")
    whole = by_seed.index[(by_seed["sum"] == most) & (by_seed["max"] >= len(set(rates)))]
    best = at_best_rate(ended, [*CELL, "seed"], selection).set_index([*CELL, "seed"])
    return best[f"{selection}_accuracy"].reindex(whole, fill_value=0.0)


def at_rate_of_task(frame: pd.DataFrame, rates: Collection[float] = (), of: str = "test_accuracy") -> pd.Series:
    """The accuracy `of` the last epoch at the rate of its task that is best for all mixers; as `scores_by_seed`.

    Best is the mean over mixers of the means over settings, of the rates that all cells of the task have. A replica
    that diverged counts as 0.
    """
    ended = _ended(frame, rates)
    accuracies = ended[of].where(ended["status"] == "finished", 0.0)
    seeds = accuracies.groupby([ended[key] for key in (*CELL, "lr", "seed")], sort=False).max()  # of configurations
    cells = seeds.groupby(level=[*CELL, "lr"], sort=False).mean()
    counts = cells.groupby(level=["task", "lr"]).transform("size")
    complete = cells[counts.eq(ended.drop_duplicates(CELL).groupby("task").size(), level="task")]
    by_mixer = complete.groupby(level=["column", "task", "lr"], sort=False).mean()
    best = by_mixer.groupby(level=["task", "lr"]).mean().groupby(level="task").idxmax()
    return seeds[seeds.index.droplevel(["column", "setting", "seed"]).isin(best)].droplevel("lr")


def _ended(frame: pd.DataFrame, rates: Collection[float]) -> pd.DataFrame:
    known = without_repeats(frame)
    ended = known[known["status"].isin(ENDED)]
    return ended[ended["lr"].isin(rates)] if rates else ended


def numbers_of(tables: Mapping[str, Published]) -> pd.DataFrame:
    """The numbers of each table, in columns."""
    return pd.concat({key: table.numbers for key, table in tables.items()}, axis=1)


def of_mixers(numbers: pd.DataFrame, lines: pd.MultiIndex) -> pd.DataFrame:
    """The published numbers beside each of our lines, of a task, setting and column."""
    places = [(task, setting, column.mixer) for task, setting, column in lines]
    return numbers.reindex(places).set_axis(lines)


def distance(one: pd.Series, other: pd.Series) -> tuple[int, float, float]:
    """How many numbers two tables share, and over those the RMSE and Spearman's rank correlation.

    NaN is an RMSE of none, and a correlation of two or of which a side is all alike.
    """
    both = pd.DataFrame({"one": one, "other": other}).dropna()
    rmse = ((both["one"] - both["other"]) ** 2).mean() ** 0.5
    return len(both), rmse, both.corr("spearman", min_periods=3).loc["one", "other"]


def ranges(numbers: pd.DataFrame) -> pd.DataFrame:
    """The lowest and the highest number of several tables, `low` and `high`, and the `count` of those that have it."""
    return pd.DataFrame({"low": numbers.min(axis=1), "high": numbers.max(axis=1), "count": numbers.count(axis=1)})
