"""The accuracy tables, from one row per cell (`sweeps.collect.best_per_cell`).

`sweeps.table_files` writes them.

Tables never hide gaps: a mean over fewer settings than there are carries `*` and k/n, is never bold, and the notes
below name what is missing. So does a mean over fewer seeds than its cell has, which carries ¶ and k/n. A learning rate
whose grid should be wider carries a dagger, a score whose cell lacks learning rates a §, and is never bold.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

import pandas as pd

from mixerlab.records.edges import MARGIN, NEAR_PERFECT
from mixerlab.records.names import AVERAGE, MIXERS, SEES_FUTURE, TASKS, in_order, mixer_of, sees_future
from mixerlab.records.text import counted
from mixerlab.sweeps.tables.intervals import half_width

MOST_NAMED = 12  # cells in the note on additional learning rates
SPREAD = "mean ± std (n): the sample standard deviation over n seeds."
UNEVEN = "(n to m seeds)"


@dataclass(frozen=True)
class Score:
    """One entry of a table: the mean accuracy over the `done` of `total` settings that have a score.

    `by_seed` holds the same mean for each seed, if all of them have the same seeds; else it is empty, and `uneven` is
    the fewest and the most seeds of a setting. `edges` counts the settings whose best learning rate calls for a wider
    grid (`sweeps.edges`), `lacking` those that lack learning rates (`sweeps.grids`); `lost` has, for each setting whose
    best learning rate lost seeds, how many seeds its mean is over and how many it should be over; `status` says why
    there is no score where `done` is 0.
    """

    mean: float | None
    by_seed: dict[int, float]
    done: int
    total: int
    edges: int
    status: str
    uneven: tuple[int, int] | None = None
    lacking: int = 0
    lost: tuple[tuple[int, int], ...] = ()

    @property
    def complete(self) -> bool:
        return self.done == self.total

    @property
    def whole(self) -> bool:
        """Whether the mean is over all settings and all of their seeds."""
        return self.complete and not self.lost

    @property
    def seeds(self) -> str:
        """How many seeds a setting has: `3`, or `1 to 3` where they differ."""
        fewest, most = self.uneven or (len(self.by_seed), len(self.by_seed))
        return f"{most}" if fewest == most else f"{fewest} to {most}"

    @property
    def spread(self) -> float | None:
        """The sample standard deviation over seeds; None below two."""
        return stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None


@dataclass(frozen=True)
class Table:
    """Scores by row, then by mixer; `labels` names the columns that a row's name fills.

    `legend` says what a reader of the entries needs (what marks, bold and the average mean), `remarks` what is missing
    and where the numbers come from. `about` has the task, or task and setting, of the rows that are named otherwise.
    """

    labels: tuple[str, ...]
    mixers: tuple[str, ...]
    rows: dict[tuple[str, ...], dict[str, Score]]
    legend: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    about: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        return [*self.legend, *self.remarks]


def mean_of(scores: Iterable[Score]) -> Score:
    """The plain mean of several scores, as one score.

    Where one of them has no value, it is the mean of the others, and incomplete. Each counts with all of its seeds.
    Where these differ, no seed has a mean of its own, and so the score has no spread, interval or tie with the best
    one: over the seeds that all share they would be of another mean than this.
    """
    scores = list(scores)
    scored = [score for score in scores if score.mean is not None]
    means = [score.mean for score in scores if score.mean is not None]
    seeds = {frozenset(score.by_seed) for score in scored}
    even = len(seeds) < 2 and all(score.uneven is None for score in scored)
    shared = sorted(next(iter(seeds), ())) if even else []
    numbers = [number for score in scored for number in score.uneven or (len(score.by_seed),)]
    return Score(
        mean=fmean(means) if means else None,
        by_seed={seed: fmean(score.by_seed[seed] for score in scored) for seed in shared},
        done=sum(score.done for score in scores),
        total=sum(score.total for score in scores),
        edges=sum(score.edges for score in scores),
        status=_worst(score.status for score in scores),
        uneven=None if even else (min(numbers), max(numbers)),
        lacking=sum(score.lacking for score in scores),
        lost=tuple(seeds for score in scores for seeds in score.lost),
    )


def _worst(statuses: Iterable[str]) -> str:
    found = set(statuses)
    return next(status for status in ("diverged", "failed", "missing", "partial", "ok") if status in found)


def task_table(cells: pd.DataFrame) -> Table:
    """Tasks x mixers: the mean over the task's settings, and in `Avg` the plain mean of the task scores.

    The user's own tasks are no part of `Avg` where MAD's stand beside them.
    """
    by_setting = _scores(cells)
    mixers = tuple(in_order(cells["mixer"], MIXERS))
    rows: dict[tuple[str, ...], dict[str, Score]] = {}
    for task in in_order(cells["task"], TASKS):
        settings = [scores for (other, _), scores in by_setting.items() if other == task]
        rows[(task,)] = {mixer: mean_of(scores[mixer] for scores in settings) for mixer in mixers}
    own = [name for (name,) in rows if name not in TASKS]
    averaged = [scores for (name,), scores in rows.items() if name in TASKS] or list(rows.values())
    of_average = []
    if len(averaged) > 1:
        rows[(AVERAGE,)] = {mixer: mean_of(scores[mixer] for scores in averaged) for mixer in mixers}
        if len(averaged) < len(rows) - 1:
            of_average = [f"{AVERAGE} is the mean of MAD's tasks, without {', '.join(own)}."]
    return Table(("task",), mixers, rows, _legend(rows, cells) + of_average, _remarks(cells))


def setting_table(cells: pd.DataFrame) -> Table:
    """(task, setting) x mixers."""
    rows = _scores(cells)
    mixers = tuple(in_order(cells["mixer"], MIXERS))
    return Table(("task", "setting"), mixers, rows, _legend(rows, cells), _remarks(cells))


def _scores(cells: pd.DataFrame) -> dict[tuple[str, ...], dict[str, Score]]:
    rows: dict[tuple[str, ...], dict[str, Score]] = {}
    for cell in cells.itertuples():
        rows.setdefault((cell.task, cell.setting), {})[cell.mixer] = score_of(cell)
    return rows


def score_of(cell: Any) -> Score:
    """The score of one row of `sweeps.collect.best_per_cell`, from `itertuples`."""
    if not cell.n:
        return Score(None, {}, 0, 1, 0, cell.status)
    return Score(
        mean=float(cell.accuracy),
        by_seed=cell.by_seed,
        done=1,
        total=1,
        edges=int(cell.edge),
        status=cell.status,
        lacking=int(len(cell.lacking) > 0),
        lost=((cell.n, cell.seeds),) if cell.n < cell.seeds else (),
    )


def _legend(rows: Mapping[tuple[str, ...], Mapping[str, Score]], cells: pd.DataFrame) -> list[str]:
    """What the marks mean that occur in these rows."""
    scores = [score for row in rows.values() for score in row.values() if score.mean is not None]
    scored = {mixer for row in rows.values() for mixer, score in row.items() if score.mean is not None}
    notes = []
    if any(score.spread is not None for score in scores):
        notes.append(
            f"{SPREAD} Bold: the highest score, and every score whose difference from it has a 95% Student t interval"
            " (over the seeds that both have) that includes 0. Nothing is bold if no other score shares two seeds with"
            " the highest."
        )
        if any(len(score.by_seed) == 2 for score in scores):
            notes.append("Two seeds tell apart only large differences: most entries in bold may well be unequal.")
    elif len(scored) > 1 and not any(has_uneven_seeds(score) for score in scores):
        notes.append("One seed: nothing is bold, since nothing says how far seeds differ.")
    if any(has_uneven_seeds(score) for score in scores):
        notes.append(
            f"{UNEVEN}: the settings have different seeds. The mean is over all of them and has no interval: it is"
            " never bold."
        )
    if any(score.edges for score in scores):
        notes.append(
            f"† Below {NEAR_PERFECT}, and best at the smallest or largest learning rate tried, by more than {MARGIN}"
            " over every rate in between (of two rates, over the other): a wider grid may give more. This applies to"
            f" {cells['edge'].sum()} of {counted(int((cells['chosen_by'] < NEAR_PERFECT).sum()), 'cell')} below"
            f" {NEAR_PERFECT}; †k: in k of the settings."
        )
    if any(not score.complete for score in scores):
        notes.append("* Mean over the k of n settings that have a score (k/n): not comparable, so never bold.")
    if any(score.lost for score in scores):
        notes.append(
            "¶k/n Mean over k of the n seeds of the cell: at the best learning rate the other seeds diverged, failed or"
            " are missing. Without them a mean is biased upwards, so it is never bold. ¶k: in k of the settings."
        )
    if any(score.lacking for score in scores):
        notes.append(
            "§ No run has ended at a learning rate that was to be tried, or that most others were tried at: never bold,"
            " nor is a lower score of its row, and without a dagger. §k: in k of the settings."
        )
    if any(map(sees_future, cells["mixer"].unique())):
        notes.append(
            f"{SEES_FUTURE.strip()} May see the tokens that it predicts (model.may_see_future=true): not comparable, so"
            " never bold."
        )
    return notes


def _remarks(cells: pd.DataFrame) -> list[str]:
    """What has no score, in a line for each mixer or for several that lack the same; what entries are the best of."""
    rows = list(cells.itertuples())
    totals = _settings_of(rows)
    of_mixer: dict[str, list[Any]] = {}
    for row in rows:
        of_mixer.setdefault(row.mixer, []).append(row)
    lines: dict[str, list[str]] = {}
    for mixer, own in of_mixer.items():
        unscored: dict[str, list[Any]] = {}
        for row in own:
            if not row.n:
                unscored.setdefault(row.status, []).append(row)
        if unscored:
            gaps = "; ".join(f"{status} on {_listed(group, totals)}" for status, group in unscored.items())
            lines.setdefault(gaps, []).append(mixer)
    notes = [f"{'; '.join(mixers)}: {gaps}." for gaps, mixers in lines.items()]
    counts = []
    for mixer, own in of_mixer.items():
        if partial := [row for row in own if row.status == "partial"]:
            diverged, lost = sum(row.diverged for row in partial), sum(row.lost for row in partial)
            counts.append(f"{mixer} {diverged} diverged, {lost} otherwise")
    if counts:
        notes.append(f"Replicas without a score beside others of their cell: {'; '.join(counts)}.")
    if lacking := _rates_told(((row, row.lacking) for row in rows if row.lacking), totals):
        notes.append(f"§ Missing: {lacking}.")
    notes += _added_rates(rows, totals)
    below = [row for row in rows if row.n and row.chosen_by < NEAR_PERFECT]
    if single := [row for row in below if len(row.rates) == 1]:
        notes.append(
            f"{len(single)} of {counted(len(below), 'cell')} below {NEAR_PERFECT} were run at one learning rate"
            " only: another may give more, and such cells cannot get a dagger."
        )
    for mixer, own in of_mixer.items():
        if several := [row for row in own if row.configs > 1]:
            most = max(row.configs for row in several)
            notes.append(f"{mixer}: the best of up to {most} configurations on {_listed(several, totals)}.")
    return notes


def _settings_of(rows: Iterable[Any]) -> dict[str, set[str]]:
    """The settings of each task."""
    settings: dict[str, set[str]] = {}
    for row in rows:
        settings.setdefault(row.task, set()).add(row.setting)
    return settings


def _added_rates(rows: Sequence[Any], totals: Mapping[str, Collection[str]]) -> list[str]:
    """Which cells have learning rates beyond those of their row: of more than MOST_NAMED, how many.

    Where no two cells of a row share a rate, as after a search, only how many each mixer has.
    """
    apart = _rows_that_share_no_rate(rows)
    searched = [row for row in rows if row.added and (row.task, row.setting) in apart]
    added = [row for row in rows if row.added and (row.task, row.setting) not in apart]
    notes = []
    if searched:
        numbers = Counter[str]()
        for row in searched:
            numbers[mixer_of(row.mixer)] += len(row.added)
        notes.append(f"Learning rates that no other cell of the row has: {_counts(numbers)} (rows.csv has them).")
    if len(added) > MOST_NAMED:
        of_mixer = Counter(mixer_of(row.mixer) for row in added)
        notes.append(
            f"{len(added)} cells have learning rates beyond those of most others in their row, which do not lack them:"
            f" {_counts(of_mixer)} (rows.csv has each cell's)."
        )
    elif added:
        told = _rates_told(((row, row.added) for row in added), totals)
        notes.append(f"Learning rates beyond those of most others in the row, which do not lack them: {told}.")
    return notes


def _counts(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{mixer} {numbers[mixer]}" for mixer in in_order(numbers, MIXERS))


def _rows_that_share_no_rate(cells: Iterable[Any]) -> set[tuple[str, str]]:
    """The tasks and settings on which no two cells were run at the same learning rate."""
    rates: dict[tuple[str, str], list[float]] = {}
    for cell in cells:
        rates.setdefault((cell.task, cell.setting), []).extend(cell.rates)
    return {place for place, of_cells in rates.items() if len(set(of_cells)) == len(of_cells)}


def _rates_told(found: Iterable[tuple[Any, tuple[float, ...]]], totals: Mapping[str, Collection[str]]) -> str:
    """Rows with some of their learning rates, by mixer and rates."""
    grouped: dict[tuple[str, tuple[float, ...]], list[Any]] = {}
    for row, rates in found:
        grouped.setdefault((row.mixer, rates), []).append(row)
    return "; ".join(
        f"{mixer} at {', '.join(f'{rate:g}' for rate in rates)} on {_listed(group, totals)}"
        for (mixer, rates), group in grouped.items()
    )


def _listed(some: Iterable[Any], totals: Mapping[str, Collection[str]]) -> str:
    """The settings of these cells by task, or how many if they are all that the task has: `sc (all 13 settings)`."""
    by_task: dict[str, list[str]] = {}
    for row in some:
        by_task.setdefault(row.task, []).append(row.setting)
    parts = []
    for task, settings in by_task.items():
        total = len(totals[task])
        everything = len(settings) == total and total > 1
        parts.append(f"{task} ({f'all {total} settings' if everything else ', '.join(settings)})")
    return ", ".join(parts)


def has_uneven_seeds(score: Score) -> bool:
    """Whether the entry says so: one seed for each setting needs no word, whichever it is."""
    return score.uneven is not None and max(score.uneven) > 1


def text_of(score: Score) -> str:
    """An entry as plain text, such as `0.812 ± 0.003 (5)* (9/11) ¶1 §1 †2` or, of one setting, `0.812 ¶1/3`."""
    if score.mean is None:
        return score.status if score.total == 1 else f"{score.status} (0/{score.total})"
    text = f"{score.mean:.3f}"
    if score.spread is not None:
        text += f" ± {score.spread:.3f} ({score.seeds})"
    elif has_uneven_seeds(score):
        text += f" ({score.seeds} seeds)"
    return text + marks_of(score)


def marks_of(score: Score) -> str:
    """What follows the mean and its seeds, such as `* (9/11) ¶1 §1 †2` or, of one setting, ` ¶1/3`."""
    text = "" if score.complete else f"* ({score.done}/{score.total})"
    if score.lost:
        (scored, seeds), *_ = score.lost
        text += f" ¶{scored}/{seeds}" if score.total == 1 else f" ¶{len(score.lost)}"
    if score.lacking:
        text += " §" if score.total == 1 else f" §{score.lacking}"
    if score.edges:
        text += " †" if score.total == 1 else f" †{score.edges}"
    return text


def best_of(row: dict[str, Score]) -> set[str]:
    """The mixers whose whole score is the highest at the printed precision, or may be by its spread over seeds.

    None where no other whole score shares two seeds with the highest: nothing then says how far seeds differ. None
    where a score that lacks learning rates, which might be higher with them, is above all that lack none.
    """
    means = {
        mixer: round(score.mean, 3)
        for mixer, score in row.items()
        if score.mean is not None and score.whole and not sees_future(mixer)
    }
    fair = [mixer for mixer in means if not row[mixer].lacking]
    best = [mixer for mixer in fair if means[mixer] == max(means.values())]
    compared = {
        (one, other) for one in best for other in fair if one != other and len(_shared(row[one], row[other])) > 1
    }
    return {one for one, _ in compared} | {other for one, other in compared if _may_be_equal(row[other], row[one])}


def _shared(one: Score, other: Score) -> list[int]:
    return sorted(set(one.by_seed) & set(other.by_seed))


def _may_be_equal(one: Score, best: Score) -> bool:
    """Whether the interval of their difference over the seeds that both have, at least two, reaches 0.

    It is Student's. Two or three resampled differences are all of one sign too often: a bootstrap interval would part
    two mixers that are equal every second or fourth time.
    """
    differences = [best.by_seed[seed] - one.by_seed[seed] for seed in _shared(one, best)]
    return fmean(differences) <= half_width(differences)
