"""The tables of scores, from one row per cell (`best_per_cell`). `writers` writes them.

Tables never hide gaps. Three marks: bold, with evidence (`best_of`); † where a grid of learning rates should be wider;
* for what is incomplete. The notes say what is missing.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import pandas as pd

from mixerlab.records.best import MARGIN, NEAR_PERFECT
from mixerlab.records.names import AVERAGE, averaged
from mixerlab.records.schema import ACCURACY, Score
from mixerlab.sweeps.tables.columns import Column, labels
from mixerlab.sweeps.tables.intervals import Error, error_of_mean, error_of_sum, half_width, interval_text

STATUSES = ("diverged", "failed", "missing", "ok")  # the worst first
INTERVAL = "After ±, half of Student's 95% interval of the mean over seeds, (n) of them where others have more."
UNEVEN = "(n to m seeds): the settings have different seeds. If some have one, the ± is a lower bound."
_BOLD = (
    "Bold: of the scores with two seeds or more of each setting the best, and every one whose difference from it has a"
    " 95% interval (Welch's) that includes 0; nothing where one with fewer seeds is ahead."
)
_ONE_SEED = "One seed: nothing is bold, since nothing says how far seeds differ."
_EDGE = (
    f"best at the smallest or largest learning rate tried, by more than {MARGIN} over those in between: a wider grid"
    " may give more."
)
_INCOMPLETE = (
    "* Incomplete, as said below: settings, seeds or learning rates are missing, seeds are of different code, or it"
    " sees the future. Not bold; nor is what is worse than a score that lacks learning rates or is of different code."
)
_SETTINGS_NAMED = 3


@dataclass(frozen=True)
class Entry:
    """One entry of a table: the mean over the `done` of `total` settings that have a score.

    Attributes:
        mean: None if there is none: `status` says why.
        by_seed: the same mean for each seed, if all settings have the same seeds; else empty.
        seeds: the fewest and the most seeds of a setting.
        whole: whether the mean is over all settings and all of their seeds, of models that do not see the future.
        comparable: whether all of it is of one grid of learning rates and one code.
        edges: settings whose grid of learning rates should be wider.
        parts: what it is the mean of, if that has different seeds.
        score: which it is.
        learned: the share of its seeds that reached 0.9, averaged over the settings; None: not known.
    """

    mean: float | None
    by_seed: Mapping[int, float]
    done: int
    total: int
    status: str
    seeds: tuple[int, int] = (0, 0)
    whole: bool = True
    comparable: bool = True
    edges: int = 0
    score: Score = ACCURACY
    parts: tuple["Entry", ...] = ()
    learned: float | None = None

    @property
    def incomplete(self) -> bool:
        """Whether settings, seeds or learning rates are missing, seeds are of different code or see the future."""
        return not self.whole or not self.comparable

    @property
    def uneven(self) -> bool:
        """Whether its settings have different seeds; one for each needs no word, whichever it is."""
        return not self.by_seed and self.seeds[1] > 1

    @property
    def error(self) -> Error:
        """Of the mean over seeds. Settings with one seed add nothing to it."""
        if not self.parts:
            return error_of_mean(self.by_seed.values())
        errors = (part.error for part in self.parts)
        return error_of_sum((error / len(self.parts) ** 2, freedom) for error, freedom in errors)

    @property
    def half_interval(self) -> float | None:
        """Half of Student's 95% interval of the mean; None where no setting has two seeds."""
        return half_width(self.error) if self.error[1] else None

    @property
    def is_bound(self) -> bool:
        """Whether some settings have one seed, so that an interval is a lower bound."""
        return self.seeds[0] == 1


Row = Mapping[Column, Entry]


@dataclass(frozen=True)
class Table:
    """A `frame` of entries: its index is the task, or task and setting, its columns are `Column`s.

    `notes` say what the marks mean that occur, what is missing, and what else a reader must know.
    """

    frame: pd.DataFrame
    notes: tuple[str, ...] = ()

    @property
    def entries(self) -> list[Entry]:
        return list(self.frame.to_numpy().flat)

    @property
    def most_seeds(self) -> int:
        return most_seeds(self.entries)

    @property
    def best(self) -> pd.DataFrame:
        """Which entries are bold (`best_of`)."""
        return self.frame.apply(lambda row: pd.Series(row.index.isin(best_of(row)), row.index), axis=1)


def most_seeds(entries: Iterable[Entry]) -> int:
    """The most seeds that a ± is over: one over fewer names their number."""
    return max((len(entry.by_seed) for entry in entries), default=0)


def seeds_entry(by_seed: Mapping[int, float], whole: bool = True) -> Entry:
    """The score of one setting; `whole`: as of `Entry`."""
    if not by_seed:
        return Entry(None, {}, 0, 1, "missing", whole=False)
    return Entry(fmean(by_seed.values()), by_seed, 1, 1, "ok", (len(by_seed),) * 2, whole)


def mean_of(entries: Iterable[Entry]) -> Entry:
    """The plain mean of several entries of one score, as one entry.

    Where one of them has no value, it is the mean of the others, and incomplete. Each counts with all of its seeds.
    Where these differ, no seed has a mean of its own: over the seeds that all share it would be of another mean.
    """
    entries = list(entries)
    scored = [entry for entry in entries if entry.mean is not None]
    seeds = {frozenset(entry.by_seed) for entry in scored}
    shared = sorted(next(iter(seeds))) if len(seeds) == 1 else []
    numbers = [number for entry in scored for number in entry.seeds] or [0]
    learned = [entry.learned for entry in scored if entry.learned is not None]
    return Entry(
        mean=fmean(entry.mean for entry in scored if entry.mean is not None) if scored else None,
        by_seed={seed: fmean(entry.by_seed[seed] for entry in scored) for seed in shared},
        done=sum(entry.done for entry in entries),
        total=sum(entry.total for entry in entries),
        status=min((entry.status for entry in entries), key=STATUSES.index),
        seeds=(min(numbers), max(numbers)),
        whole=all(entry.whole for entry in entries),
        comparable=all(entry.comparable for entry in entries),
        edges=sum(entry.edges for entry in entries),
        score=entries[0].score,
        parts=() if shared else tuple(scored),
        learned=fmean(learned) if learned and len(learned) == len(scored) else None,
    )


def best_of(row: Row) -> set[Column]:
    """The columns whose whole score is the best at the printed precision, or may be by the interval of the difference.

    None where no other whole score has two seeds: nothing then says how far seeds differ. None where a score that has
    one, that lacks learning rates, which might be better with them, or that is of different code is ahead of all
    others.
    """
    means = {
        column: entry.score.sign * entry.mean for column, entry in row.items() if entry.mean is not None and entry.whole
    }
    fair = [column for column in means if row[column].comparable and not row[column].is_bound]
    found = set()
    for best in (column for column in fair if round(means[column], 3) == round(max(means.values()), 3)):
        for other in (column for column in fair if column != best):
            tied = means[best] - means[other] <= half_width(row[best].error, row[other].error)
            found |= {best, other} if tied else {best}
    return found


def task_table(cells: pd.DataFrame) -> Table:
    """Tasks x columns: the mean over the task's settings, and in `Avg` the plain mean of the tasks, all of one score.

    The user's own tasks are no part of `Avg` where MAD's stand beside them. Of several entries of a setting, by swept
    keys of its task, the mean counts once.
    """
    settings = cells.groupby(["task", "column", "setting_name"], sort=False)["entry"].agg(mean_of)
    frame = settings.groupby(["task", "column"], sort=False).agg(mean_of).unstack(sort=False)
    over, remarks = averaged(frame.index), []
    if len(over) > 1:
        if own := [task for task in frame.index if task not in over]:
            remarks = [f"{AVERAGE} is the mean of MAD's tasks, without {', '.join(own)}."]
        frame.loc[AVERAGE] = frame.loc[over].agg(mean_of)
    return make_table(frame, cells, remarks)


def setting_table(cells: pd.DataFrame) -> Table:
    """(task, setting) x columns."""
    return make_table(by_column(cells, "entry"), cells)


def by_column(cells: pd.DataFrame, what: str) -> pd.DataFrame:
    """What the cells have, by task and setting, in columns."""
    return cells.set_index(["task", "setting", "column"])[what].unstack(sort=False)


def make_table(frame: pd.DataFrame, cells: pd.DataFrame, remarks: Iterable[str] = ()) -> Table:
    """A table of these entries, with its notes."""
    table = Table(frame)
    scored = [entry for entry in table.entries if entry.mean is not None]
    several = frame.map(lambda entry: entry.mean is not None).any().sum() > 1
    spread = any(entry.half_interval is not None for entry in scored)
    scores = cells.groupby("score", sort=False)["task"].unique()
    edged = {entry.score.is_accuracy for entry in table.entries if entry.edges}
    below = f"below {NEAR_PERFECT}{' if it is an accuracy' if False in edged else ''}, and " if True in edged else ""
    legend = {
        INTERVAL: spread,
        UNEVEN: any(entry.uneven for entry in scored),
        _BOLD: spread and several,
        _ONE_SEED: not spread and several,
        f"† {below}{_EDGE}": any(entry.edges for entry in scored),
        "†k: in k settings.": any(entry.edges and entry.total > 1 for entry in scored),
        _INCOMPLETE: any(entry.incomplete for entry in scored),
        "(k/n): k of n settings have a score.": any(entry.done < entry.total > 1 for entry in table.entries),
    }
    notes = [note for note, occurs in legend.items() if occurs]
    for score, tasks in scores.items():
        if not score.is_accuracy:
            way = "higher" if score.higher_is_better else "lower"
            notes.append(f"{', '.join(tasks)}: {score.label}, the {way} the better.")
    return replace(table, notes=(*notes, *remarks, *gaps(cells)))


def gaps(cells: pd.DataFrame) -> list[str]:
    """What is missing, and what entries are the best of: a line for each column, or for several with the same gaps."""
    numbers = cells.groupby("task")["setting"].nunique()
    missing = cells.assign(reason=list(map(_missing_of, cells.itertuples()))).explode("reason").dropna(subset="reason")
    told = defaultdict[Column, dict[str, list[str]]](lambda: defaultdict(list))  # where, by what is missing
    for (column, reason, task), settings in missing.groupby(["column", "reason", "task"], sort=False)["setting"]:
        told[column][reason].append(_where(task, list(settings), numbers[task]))
    names = labels(cells["column"].unique())
    lines = defaultdict[str, list[str]](list)
    for column, reasons in told.items():
        text = "; ".join(f"{reason} on {', '.join(where)}" for reason, where in reasons.items())
        lines[text].append(names[column])
    return [f"{'; '.join(columns)}: {text}." for text, columns in lines.items()]


def _where(task: str, own: list[str], number: int) -> str:
    """These settings of a task that has `number`."""
    if len(own) == number > 1:
        return f"{task} (all {number} settings)"
    comma = "; " if any(", " in setting for setting in own) else ", "
    more = f" and {len(own) - _SETTINGS_NAMED} more" if len(own) > _SETTINGS_NAMED else ""
    return f"{task} ({comma.join(own[:_SETTINGS_NAMED])}{more})"


def _missing_of(cell: Any) -> list[str]:
    """What a reader must know of a cell of `best_per_cell`."""
    if not cell.n:
        return [cell.entry.status]
    diverged = f" ({cell.diverged} diverged)" if cell.diverged else ""
    told = {
        f"{cell.n} of {cell.seeds} seeds at the best learning rate{diverged}": cell.n < cell.seeds,
        f"replicas without a score at the learning rate {', '.join(f'{rate:g}' for rate in cell.unscored)}": (
            cell.n == cell.seeds and len(cell.unscored) > 0
        ),
        f"nothing at the learning rate {', '.join(f'{rate:g}' for rate in cell.lacking)}": len(cell.lacking) > 0,
        f"different code trained the seeds {' / '.join(', '.join(map(str, own)) for own in cell.by_code)}": (
            len(cell.by_code) > 1
        ),
        f"the best of {cell.configs} configurations (see --by)": cell.configs > 1,
    }
    return [reason for reason, applies in told.items() if applies]


def text_of(entry: Entry, most: int) -> str:
    """An entry as plain text: `0.812 ± 0.003 (2) †3* (9/11)`, `diverged`. `most`: seeds that a ± need not name."""
    if entry.mean is None:
        return entry.status if entry.total == 1 else f"{entry.status} (0/{entry.total})"
    return " ".join(filter(None, (interval_text(entry.mean, entry.error), seeds_of(entry, most), marks_of(entry))))


def seeds_of(entry: Entry, most: int) -> str:
    """What an entry says of its seeds, where a ± is over at most `most`: `(2)`, `(1 to 3 seeds)` or nothing."""
    fewest, greatest = entry.seeds
    if entry.uneven:
        return f"({greatest} seeds)" if fewest == greatest else f"({fewest} to {greatest} seeds)"
    return f"({len(entry.by_seed)})" if 1 < len(entry.by_seed) < most else ""


def marks_of(entry: Entry) -> str:
    """`†3* (9/11)`: three grids should be wider, and of eleven settings two have no score."""
    edges = "" if not entry.edges else "†" if entry.total == 1 else f"†{entry.edges}"
    return edges + ("*" if entry.incomplete else "") + settings_of(entry)


def settings_of(entry: Entry) -> str:
    """` (9/11)`: of eleven settings two have no score."""
    return "" if entry.done == entry.total else f" ({entry.done}/{entry.total})"
