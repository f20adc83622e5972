"""Published accuracies (`published.yaml`, or a file of one's own) and ours, number by number, and how far apart."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pandas as pd
import yaml

from mixerlab.records.best import ENDED, Selection
from mixerlab.records.errors import reason
from mixerlab.records.schema import ACCURACY
from mixerlab.sweeps.tables.cells import at_best_rate, without_repeats
from mixerlab.sweeps.tables.columns import Column, columns_in_order
from mixerlab.sweeps.tables.tables import Entry, mean_of, seeds_entry

KNOWN = Path(__file__).with_suffix(".yaml")
# How ours are chosen: each seed's best learning rate, on test or on validation; or the accuracy of the last epoch, at
# the one rate of each task that is the best for all mixers together.
Rule = Literal["official", "clean", "last"]
_CELL = ["column", "task", "setting"]


class Name(NamedTuple):
    """Of a number: a task, and its setting; without one it is the mean over the task's settings."""

    task: str
    setting: str = ""

    def __str__(self) -> str:
        return f"{self.task} {self.setting}".strip()

    @property
    def kind(self) -> str:
        """Where it stands in a file."""
        return "settings" if self.setting else "means"


Place = tuple[Name, str]  # and a mixer
Numbers = Mapping[Place, float]
Means = Iterable[tuple[Place, float]]  # of ours there may be several of one place, by column
Series = Mapping[Name, Mapping[Column, Entry]]  # of ours


@dataclass(frozen=True)
class Published:
    """A published table.

    Attributes:
        about: its title, where it is from, what is known of its training and how it was checked, in sentences.
        rates: the learning rates that its numbers are the best of, where ours count too; else empty.
        numbers: accuracies, one for each name and mixer.
        over: the settings of each task that a mean is over.
    """

    title: str
    about: str
    rates: tuple[float, ...]
    numbers: Numbers
    over: Mapping[str, tuple[str, ...]]

    def settings_of(self, name: Name) -> tuple[str, ...]:
        """What a number of this name is the mean over."""
        return (name.setting,) if name.setting else self.over[name.task]


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
    numbers: dict[Place, float] = {}
    for kind in ("means", "settings"):
        for mixer, row in table.get(kind, {}).items():
            for text, value in row.items():
                if not (isinstance(value, int | float) and 0 <= value <= 1):
                    raise ValueError(f"{name}, {mixer}, {text}: {value!r} must be an accuracy in [0, 1]")
                place = Name(*text.split(" ", 1))
                if place.kind != kind or (kind == "means" and text not in over):
                    raise ValueError(f"{name}, {mixer}, {text}: this is no name of {kind}")
                numbers[place, mixer] = float(value)
    title, source, recipe, checked = (str(table.get(key, "")) for key in ("title", "source", "recipe", "checked"))
    parts = (("", ", ".join(filter(None, (title, source)))), ("Recipe: ", recipe), ("Checked: ", checked))
    about = " ".join(f"{before}{text}." for before, text in parts if text)
    return Published(title, about, tuple(map(float, table.get("rates", ()))), numbers, over)


def ours(
    frame: pd.DataFrame, tables: Collection[Published], rule: Rule = "official", rates: Collection[float] = ()
) -> Series:
    """Our accuracy for each one that any of the tables has, of every column that has a part of it.

    Of `rates`, if there are any, only these count, and a seed that lacks one is left out. ValueError for tables whose
    means are over different settings.
    """
    settings: dict[Name, tuple[str, ...]] = {}
    for table in tables:
        for name, _ in table.numbers:
            over = table.settings_of(name)
            if set(settings.setdefault(name, over)) != set(over):
                told = f"{name}: {table.title} has the mean over other settings than another table"
                raise ValueError(f"{told}, over {', '.join(over)}: name it alone after --published")
    frame = frame[frame["score"] == ACCURACY.name]
    if frame.empty:
        return {}
    scores = at_rate_of_task(frame, rates) if rule == "last" else scores_by_seed(frame, rule, rates)
    by_cell = {cell: own.droplevel(_CELL).to_dict() for cell, own in scores.groupby(level=_CELL, sort=False)}
    found: dict[Name, dict[Column, Entry]] = {}
    for name, over in settings.items():
        for column in columns_in_order(place[0] for place in by_cell if place[1] == name.task):
            by_setting = [by_cell.get((column, name.task, setting), {}) for setting in over]
            if any(by_setting):
                found.setdefault(name, {})[column] = mean_of(seeds_entry(by_seed) for by_seed in by_setting)
    return found


def scores_by_seed(frame: pd.DataFrame, selection: Selection = "official", rates: Collection[float] = ()) -> pd.Series:
    """Our accuracy as a paper with one seed finds it, at the seed's best rate; by column, task, setting and seed.

    The report's tables have one learning rate for all seeds of a cell. Where recall comes in a jump, and at another
    rate for each seed, that is lower. A seed that has fewer rates than another of its cell is left out. One that
    diverged at all of its rates counts as 0. Of `rates`, if there are any, only these count, and a seed without a
    configuration that has all of them is left out.
    """
    ended = _ended(frame, rates)
    tried = ended.groupby([*_CELL, "seed", "config"], sort=False)["lr"].nunique()
    by_seed = tried.groupby(level=[*_CELL, "seed"], sort=False).agg(["sum", "max"])
    most = by_seed["sum"].groupby(level=_CELL, sort=False).transform("max")
    whole = by_seed.index[(by_seed["sum"] == most) & (by_seed["max"] >= len(set(rates)))]
    best = at_best_rate(ended, [*_CELL, "seed"], selection).set_index([*_CELL, "seed"])
    return best[f"{selection}_accuracy"].reindex(whole, fill_value=0.0)


def at_rate_of_task(frame: pd.DataFrame, rates: Collection[float] = (), of: str = "test_accuracy") -> pd.Series:
    """The accuracy `of` the last epoch at the rate of its task that is best for all mixers; as `scores_by_seed`.

    Best is the mean over mixers of the means over settings, of the rates that all cells of the task have. A replica
    that diverged counts as 0.
    """
    ended = _ended(frame, rates)
    accuracies = ended[of].where(ended["status"] == "finished", 0.0)
    seeds = accuracies.groupby([ended[key] for key in (*_CELL, "lr", "seed")], sort=False).max()  # of configurations
    cells = seeds.groupby(level=[*_CELL, "lr"], sort=False).mean()
    counts = cells.groupby(level=["task", "lr"]).transform("size")
    complete = cells[counts.eq(ended.drop_duplicates(_CELL).groupby("task").size(), level="task")]
    by_mixer = complete.groupby(level=["column", "task", "lr"], sort=False).mean()
    best = by_mixer.groupby(level=["task", "lr"]).mean().groupby(level="task").idxmax()
    return seeds[seeds.index.droplevel(["column", "setting", "seed"]).isin(best)].droplevel("lr")


def _ended(frame: pd.DataFrame, rates: Collection[float]) -> pd.DataFrame:
    known = without_repeats(frame)
    ended = known[known["status"].isin(ENDED)]
    return ended[ended["lr"].isin(rates)] if rates else ended


def whole(series: Series) -> Means:
    """Our means over all settings of a published one."""
    entries = [((name, column.mixer), entry) for name, row in series.items() for column, entry in row.items()]
    return [(place, entry.mean) for place, entry in entries if entry.mean is not None and entry.whole]


def distance(one: Means, other: Numbers) -> tuple[int, float | None, float | None]:
    """How many numbers two tables share, and over those the RMSE and Spearman's rank correlation."""
    pairs = [(value, other[place]) for place, value in one if place in other]
    if not pairs:
        return 0, None, None
    both = pd.DataFrame(pairs, columns=["one", "other"])
    rmse = ((both["one"] - both["other"]) ** 2).mean() ** 0.5
    spearman = both.corr("spearman", min_periods=3).loc["one", "other"]  # NaN if one has no two ranks
    return len(both), float(rmse), None if pd.isna(spearman) else float(spearman)


def ranges(tables: Iterable[Published]) -> dict[Place, tuple[float, float, int]]:
    """The lowest and the highest number of several tables, and how many of them have it, by name and mixer."""
    values = defaultdict[Place, list[float]](list)
    for table in tables:
        for place, value in table.numbers.items():
            values[place].append(value)
    return {place: (min(own), max(own), len(own)) for place, own in values.items()}
