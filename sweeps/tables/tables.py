"""The tables of scores, from one row per cell (`best_per_cell`). `writers` writes them.

Tables never hide gaps. Three marks: bold, with evidence (`best_of`); † where a grid of learning rates should be wider;
* for what is incomplete. The notes say what is missing.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import pandas as pd

from mixerlab.records.best import MARGIN, NEAR_PERFECT
from mixerlab.records.names import AVERAGE, TASKS, in_order
from mixerlab.sweeps.tables.columns import Column, columns_in_order, labels
from mixerlab.sweeps.tables.intervals import half_width

STATUSES = ("diverged", "failed", "missing", "partial", "ok")  # the worst first


@dataclass(frozen=True)
class Entry:
    """One entry of a table: the mean over the `done` of `total` settings that have a score.

    Attributes:
        mean: None if there is none: `status` says why.
        by_seed: the same mean for each seed, if all settings have the same seeds; else empty.
        done, total: settings with a score, and all.
        seeds: the fewest and the most seeds of a setting.
        edges: settings whose grid of learning rates should be wider.
        lost: settings whose best learning rate has not all seeds of the cell.
        lacking: settings that lack learning rates.
        higher_is_better: of the score.
    """

    mean: float | None
    by_seed: Mapping[int, float]
    done: int
    total: int
    status: str
    seeds: tuple[int, int] = (0, 0)
    edges: int = 0
    lost: int = 0
    lacking: int = 0
    higher_is_better: bool = True

    @property
    def whole(self) -> bool:
        """Whether the mean is over all settings and all of their seeds."""
        return self.done == self.total and not self.lost

    @property
    def incomplete(self) -> bool:
        """Whether settings, seeds or learning rates are missing."""
        return not self.whole or self.lacking > 0

    @property
    def spread(self) -> float | None:
        """The sample standard deviation over seeds; None below two."""
        return stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None


Row = Mapping[Column, Entry]


@dataclass(frozen=True)
class Table:
    """Scores by row, then by column.

    Attributes:
        labels: what the parts of a row's name are called.
        columns: in the order in which they are shown.
        rows: by name, such as `("icr", "baseline")`.
        legend: what the marks mean that occur.
        remarks: what is missing, and what else a reader must know of the numbers.
    """

    labels: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: Mapping[tuple[str, ...], Row]
    legend: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def scores(self) -> list[Entry]:
        return [score for row in self.rows.values() for score in row.values()]

    @property
    def most_seeds(self) -> int:
        """The most seeds that a spread is over: one over fewer names their number."""
        return max((len(score.by_seed) for score in self.scores), default=0)


def entry_of(cell: Any) -> Entry:
    """The score of one row of `best_per_cell`, from `itertuples`."""
    if not cell.n:
        return Entry(None, {}, 0, 1, cell.status)
    return Entry(
        mean=float(cell.mean),
        by_seed=cell.by_seed,
        done=1,
        total=1,
        status=cell.status,
        seeds=(cell.n, cell.n),
        edges=int(cell.edge),
        lost=int(cell.n < cell.seeds),
        lacking=int(len(cell.lacking) > 0),
        higher_is_better=bool(cell.higher_is_better),
    )


def mean_of(scores: Iterable[Entry]) -> Entry:
    """The plain mean of several scores, as one score.

    Where one of them has no value, it is the mean of the others, and incomplete. Each counts with all of its seeds.
    Where these differ, no seed has a mean of its own, and so the score has no spread, interval or tie with the best
    one: over the seeds that all share they would be of another mean than this.
    """
    scores = list(scores)
    scored = [score for score in scores if score.mean is not None]
    seeds = {frozenset(score.by_seed) for score in scored}
    shared = sorted(next(iter(seeds))) if len(seeds) == 1 else []
    return Entry(
        mean=fmean(score.mean for score in scored if score.mean is not None) if scored else None,
        by_seed={seed: fmean(score.by_seed[seed] for score in scored) for seed in shared},
        done=sum(score.done for score in scores),
        total=sum(score.total for score in scores),
        status=next(status for status in STATUSES if any(score.status == status for score in scores)),
        seeds=(
            min((score.seeds[0] for score in scored), default=0),
            max((score.seeds[1] for score in scored), default=0),
        ),
        edges=sum(score.edges for score in scores),
        lost=sum(score.lost for score in scores),
        lacking=sum(score.lacking for score in scores),
        higher_is_better=all(score.higher_is_better for score in scored),
    )


def best_of(row: Row) -> set[Column]:
    """The columns whose whole score is the best at the printed precision, or may be by its spread over seeds.

    None where no other whole score shares two seeds with the best: nothing then says how far seeds differ. None where a
    score that lacks learning rates, which might be better with them, is ahead of all that lack none.
    """
    sign = 1 if all(score.higher_is_better for score in row.values() if score.mean is not None) else -1
    means = {
        column: sign * round(score.mean, 3)
        for column, score in row.items()
        if score.mean is not None and score.whole and not column.sees_future
    }
    fair = [column for column in means if not row[column].lacking]
    best = [column for column in fair if means[column] == max(means.values())]
    compared = {(one, other) for one in best for other in fair if one != other and len(_shared(row, one, other)) > 1}
    return {one for one, _ in compared} | {other for one, other in compared if _may_be_equal(row, one, other, sign)}


def _shared(row: Row, one: Column, other: Column) -> list[int]:
    return sorted(set(row[one].by_seed) & set(row[other].by_seed))


def _may_be_equal(row: Row, best: Column, other: Column, sign: int) -> bool:
    """Whether the interval of their difference over the seeds that both have, at least two, reaches 0.

    It is Student's. Two or three resampled differences are all of one sign too often: a bootstrap interval would part
    two mixers that are equal every second or fourth time.
    """
    seeds = _shared(row, best, other)
    differences = [sign * (row[best].by_seed[seed] - row[other].by_seed[seed]) for seed in seeds]
    return fmean(differences) <= half_width(differences)


def task_table(cells: pd.DataFrame) -> Table:
    """Tasks x columns: the mean over the task's settings, and in `Avg` the plain mean of the tasks.

    The user's own tasks are no part of `Avg` where MAD's stand beside them, and there is none over different scores.
    """
    by_setting = entries_of(cells)
    columns = columns_in_order(cells["column"])
    rows: dict[tuple[str, ...], Row] = {}
    for task in in_order(cells["task"], TASKS):
        settings = [scores for (other, _), scores in by_setting.items() if other == task]
        rows[task,] = {column: mean_of(scores[column] for scores in settings) for column in columns}
    averaged = [name for name in rows if name[0] in TASKS] or list(rows)
    own = [task for (task,) in rows if (task,) not in averaged]
    remarks = []
    if len(averaged) > 1 and cells[cells["task"].isin([task for (task,) in averaged])]["score"].nunique() < 2:
        rows[AVERAGE,] = {column: mean_of(rows[name][column] for name in averaged) for column in columns}
        remarks = [f"{AVERAGE} is the mean of MAD's tasks, without {', '.join(own)}."] if own else []
    return make_table(("task",), rows, cells, remarks)


def setting_table(cells: pd.DataFrame) -> Table:
    """(task, setting) x columns."""
    return make_table(("task", "setting"), entries_of(cells), cells)


def entries_of(cells: pd.DataFrame) -> dict[tuple[str, ...], dict[Column, Entry]]:
    rows: dict[tuple[str, ...], dict[Column, Entry]] = {}
    for cell in cells.itertuples():
        rows.setdefault((cell.task, cell.setting), {})[cell.column] = entry_of(cell)
    return rows


def make_table(
    labels: tuple[str, ...], rows: Mapping[tuple[str, ...], Row], cells: pd.DataFrame, remarks: Iterable[str] = ()
) -> Table:
    columns = tuple(columns_in_order(cells["column"]))
    return Table(labels, columns, rows, tuple(_legend(rows)), (*remarks, *gaps(cells)))


def _legend(rows: Mapping[tuple[str, ...], Row]) -> list[str]:
    """What the marks mean that occur in these rows."""
    scores = [score for row in rows.values() for score in row.values() if score.mean is not None]
    columns = {column for row in rows.values() for column, score in row.items() if score.mean is not None}
    notes = []
    if any(score.spread is not None for score in scores):
        notes.append(
            "mean ± std: the sample standard deviation over the seeds, (n) of them where others have more. Bold: the"
            " best score, and every score whose difference from it has a 95% Student t interval (over the seeds that"
            " both have) that includes 0; nothing, if no other score shares two seeds with the best. Two seeds tell"
            " apart only large differences."
        )
    elif len(columns) > 1 and not any(is_uneven(score) for score in scores):
        notes.append("One seed: nothing is bold, since nothing says how far seeds differ.")
    if any(is_uneven(score) for score in scores):
        notes.append("(n to m seeds): the settings have different seeds. Their mean has no interval, and is not bold.")
    if any(score.edges for score in scores):
        notes.append(
            f"† Below {NEAR_PERFECT}, and best at the smallest or largest learning rate tried, by more than {MARGIN}"
            " over every rate in between (of two rates, over the other): a wider grid may give more. †k: in k settings."
        )
    if any(score.incomplete for score in scores):
        notes.append(
            "* Incomplete: settings (k/n), seeds or learning rates are missing, as said below. Not bold; nor is what"
            " is worse than a score that lacks learning rates."
        )
    if any(column.sees_future for column in columns):
        notes.append("A mixer that sees the tokens that it predicts is not comparable, and not bold.")
    return notes


def gaps(cells: pd.DataFrame) -> list[str]:
    """What is missing, and what entries are the best of: a line for each column, or for several with the same gaps."""
    settings = cells.groupby("task")["setting"].nunique()
    names = labels(columns_in_order(cells["column"]))
    places: dict[Column, dict[str, dict[str, list[str]]]] = {}  # by what is missing, then by task
    for cell in cells.itertuples():
        for reason in _missing_of(cell):
            of_reason = places.setdefault(cell.column, {}).setdefault(reason, {})
            of_reason.setdefault(cell.task, []).append(cell.setting)
    lines = defaultdict[str, list[str]](list)
    for column, reasons in places.items():
        told = []
        for reason, tasks in reasons.items():
            where = [
                f"{task} (all {len(own)} settings)" if len(own) == settings[task] > 1 else f"{task} ({', '.join(own)})"
                for task, own in tasks.items()
            ]
            told.append(f"{reason} on {', '.join(where)}")
        lines["; ".join(told)].append(names[column])
    return [f"{'; '.join(columns)}: {text}." for text, columns in lines.items()]


def _missing_of(cell: Any) -> list[str]:
    """What a reader must know of a cell of `best_per_cell`."""
    if not cell.n:
        return [cell.status]
    told = []
    if cell.n < cell.seeds:
        told.append(f"{cell.n} of {cell.seeds} seeds at the best learning rate")
    elif cell.status == "partial":
        told.append("some replicas diverged, failed or missing at other learning rates")
    if cell.lacking:
        told.append(f"nothing at the learning rate {', '.join(f'{rate:g}' for rate in cell.lacking)}")
    if cell.configs > 1:
        told.append(f"the best of {cell.configs} configurations")
    return told


def is_uneven(score: Entry) -> bool:
    """Whether its settings have different seeds; one for each needs no word, whichever it is."""
    return not score.by_seed and score.seeds[1] > 1


def seeds_of(score: Entry, most: int) -> str:
    """What an entry says of its seeds, where a spread is over at most `most`: `(2)`, `(1 to 3 seeds)` or nothing."""
    if is_uneven(score):
        fewest, greatest = score.seeds
        return f"({f'{fewest} to ' if fewest < greatest else ''}{greatest} seeds)"
    return f"({len(score.by_seed)})" if 1 < len(score.by_seed) < most else ""


def marks_of(score: Entry) -> str:
    """`†3* (9/11)`: three grids should be wider, and of eleven settings two have no score."""
    edges = "" if not score.edges else "†" if score.total == 1 else f"†{score.edges}"
    settings = "" if score.done == score.total else f" ({score.done}/{score.total})"
    return edges + ("*" if score.incomplete else "") + settings


def text_of(score: Entry, most: int) -> str:
    """An entry as plain text: `0.812 ± 0.003 (2) †3* (9/11)`, `diverged`. `most`: seeds that a spread need not name."""
    if score.mean is None:
        return score.status if score.total == 1 else f"{score.status} (0/{score.total})"
    spread = "" if score.spread is None else f"± {score.spread:.3f}"
    return " ".join(filter(None, (f"{score.mean:.3f}", spread, seeds_of(score, most), marks_of(score))))
