"""A search in place of a grid: Optuna proposes values of some keys, a run of each is trained, and says how good it was.

A trial is a run with a record like any other. One that is finished is read and not trained again, so that the same
command, whose sampler proposes the same values after the same results, goes on where it stopped. For the same reason
trials come in batches: what is proposed does not depend on which run of a batch ends first.
"""

import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pandas as pd
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from mixerlab.records.atomic import replace_file
from mixerlab.records.best import chosen_by, ended_at_best_rate, score_of
from mixerlab.records.files import check_writable, kept_record, read_record
from mixerlab.records.schema import ACCURACY, CHOICES
from mixerlab.sweeps.launch.cells import ALL_SETTINGS, Cell
from mixerlab.sweeps.launch.sweep import Sweep

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.distributions import BaseDistribution

TRIALS_FILE = "trials.csv"  # in the folder of the report
LUCK = ("seed", "task.data_seed", "task.map_seed")  # keys by which runs differ only by luck
RANDOM_TRIALS = 5  # at the start, before the sampler has something to go by


def run_search(sweep: Sweep, overrides: Sequence[Override], n_trials: int, n_jobs: int, seed: int) -> None:
    """Looks for the best score of a run on validation: of its best learning rate, averaged over the seeds; reports.

    Optuna's TPE sampler with this `seed` proposes `n_trials` runs, `n_jobs` at a time, whose overrides have several
    values. A failed trial is reported, and the search continues. Closes `sweep`, and ends the process with a message if
    no trial succeeds.
    """
    for name, value, least in (("n_trials", n_trials, 1), ("n_jobs", n_jobs, 1), ("seed", seed, 0)):
        if type(value) is not int or value < least:
            raise ValueError(f"hydra.sweeper.{name}={value!r} must be a whole number of at least {least}")
    if find_spec("optuna") is None:
        raise ValueError("hydra/sweeper=optuna needs a package that is not installed: pip install optuna")
    fixed, searched = split(overrides)
    if ALL_SETTINGS in fixed:
        raise ValueError(f"hydra/sweeper=optuna searches one setting of a task, not {ALL_SETTINGS}")
    _, left_out = sweep.composer.composed([[*fixed, *first] for first in first_values(searched)])
    space = {each.get_key_element(): distribution(each) for each in searched}
    for line in left_out:
        print(line)
    if sweep.config.dry_run:
        print(*(f"{key}: {choices}" for key, choices in space.items()), f"{n_trials} trials", sep="\n")
        return
    check_writable(sweep.config.results_dir)
    search = Search(sweep, fixed)
    with closing(sweep):
        tried = search.propose(space, n_trials, n_jobs, seed)
    search.report(tried)


@dataclass
class Tried:
    """One trial: the values that were proposed and that its mixer, task and so on have, its run, why it failed.

    A failed trial has the worst score if its replicas diverged, which the sampler learns from, and else none.
    """

    trial: "Trial"
    values: dict[str, Any]
    cell: Cell | None = None
    error: str | None = None
    score: float | None = None

    @property
    def overrides(self) -> list[str]:
        return [f"{key}={value}" for key, value in self.values.items()]

    def say(self) -> None:
        values = " ".join(self.overrides)
        if self.error is not None:
            print(f"trial {self.trial.number} FAILED: {self.error} ({values})", file=sys.stderr)
        else:
            print(f"trial {self.trial.number}: {self.score:.4f} ({values})", flush=True)


class Search:
    """The runs of trials, all of which have the `fixed` overrides, and what came of them."""

    def __init__(self, sweep: Sweep, fixed: list[str]):
        self.sweep, self.fixed = sweep, fixed
        self.trained: set[Path] = set()  # the runs that this search has trained: not again, even with force=true
        self.score = ACCURACY  # what runs are judged by, once one has said so

    def propose(self, space: dict[str, Any], n_trials: int, n_jobs: int, seed: int) -> list[Tried]:
        """Proposes values and trains them, until there are `n_trials`."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)  # each trial gets a line of ours
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        tried: list[Tried] = []
        while len(tried) < n_trials:
            asked = [study.ask(space) for _ in range(min(n_jobs, n_trials - len(tried)))]
            batch = [Tried(trial, {key: _short(value) for key, value in trial.params.items()}) for trial in asked]
            self.train(batch)
            for one in batch:
                if one.score is None:
                    study.tell(one.trial, state=optuna.trial.TrialState.FAIL)
                else:
                    study.tell(one.trial, self._merit(one))
                one.say()
            tried += batch
        return tried

    def train(self, batch: Sequence[Tried]) -> None:
        """Trains the runs of these trials that are not finished, and sets what came of each."""
        pending, force = dict[Path, Cell](), self.sweep.config.force
        for one in batch:
            try:
                cell = one.cell = self.sweep.composer.cell([*self.fixed, *one.overrides])
                one.values = {key: value for key, value in one.values.items() if f"{key}={value}" in cell.overrides}
                if cell.folder not in self.trained and kept_record(cell.folder, force, cell.code) is None:
                    pending[cell.folder] = cell
            except ValueError as error:  # values that no run can have, or a damaged record
                one.error = str(error)
        failed = {cell.folder: reason for cell, reason in self.sweep.train(list(pending.values())).items()}
        self.trained |= pending.keys() - failed.keys()
        for one in batch:
            if one.cell is not None and one.error is None:
                reason = failed.get(one.cell.folder)
                one.score, one.error = (None, reason) if reason else self.outcome(one.cell.folder)

    def outcome(self, folder: Path) -> tuple[float | None, str | None]:
        """The score of a run, in which a diverged replica has the worst, and why the trial failed."""
        record = read_record(folder)
        assert record is not None, "it has just been trained or found"
        self.score = record.score
        if chosen := ended_at_best_rate(record.rows, self.score):
            return fmean(score_of(row, chosen_by("clean", self.score), self.score) for row in chosen), None
        diverged = any(row["status"] == "diverged" for row in record.rows)
        return (self.score.worst if diverged else None), "no replica finished"

    def report(self, tried: Sequence[Tried]) -> None:
        """Tables and figures of all runs, `trials.csv`, and the best trial."""
        cells = list({one.cell.folder: one.cell for one in tried if one.cell is not None}.values())
        if cells:
            folder = self.sweep.report_on(cells, self.sweep.note(cells))
            score = chosen_by("clean", self.score)
            lines = [
                {"trial": one.trial.number, score: one.score, **one.values}
                | {"run_id": one.cell.run_id if one.cell is not None else "", "error": one.error}
                for one in tried
            ]
            replace_file(folder / TRIALS_FILE, pd.DataFrame(lines).to_csv(index=False))
        succeeded = [one for one in tried if one.error is None]
        if not succeeded:
            sys.exit(f"error: all {len(tried)} trials failed")
        best = max(succeeded, key=self._merit)  # the first of equals
        assert best.cell is not None
        print(
            f"\nbest of {len(tried)} trials ({len(tried) - len(succeeded)} failed): validation {self.score.label}"
            f" {best.score:.4f} with {' '.join(best.overrides)}\nrecord: {best.cell.folder}"
        )

    def _merit(self, one: Tried) -> float:
        """The higher the better."""
        assert one.score is not None
        return self.score.sign * one.score


def _short(value: Any) -> Any:
    """A number of four digits, as columns are named after it and people type it again."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def split(overrides: Iterable[Override]) -> tuple[list[str], list[Override]]:
    """The overrides with one value, as text, and the others."""
    fixed, searched = [], []
    for override in overrides:
        if not override.is_sweep_override():
            fixed.append(str(override.input_line))
        elif isinstance(override.value(), IntervalSweep) or len(values := _values(override)) > 1:
            searched.append(override)
        else:
            fixed += [f"{override.get_key_element()}={value}" for value in values]
    for override in searched:
        if override.key_or_group in LUCK:
            raise ValueError(
                f"{override.input_line}: a search would choose the luckiest seed; give it one value, or several seeds"
                " to each run, as in seed=[0,1]"
            )
    if not searched:
        raise ValueError(
            "hydra/sweeper=optuna has no key to search: give one several values, for example"
            " 'optimizer.lr=tag(log,interval(1e-4,1e-2))'"
        )
    return fixed, searched


def first_values(searched: Sequence[Override]) -> list[list[str]]:
    """The first value of each key, for each combination of searched mixers, tasks and so on."""
    choices = []
    for override in searched:
        values = _values(override) if override.key_or_group in CHOICES else _values(override)[:1]
        choices.append([f"{override.get_key_element()}={value}" for value in values])
    return [list(combination) for combination in product(*choices)]


def distribution(override: Override) -> "BaseDistribution":
    """What Optuna may choose from; `ValueError` if it cannot."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    value: Any = override.value()
    tags: set[str] = set(getattr(value, "tags", ()))
    if tags - {"log"} or (tags and not isinstance(value, IntervalSweep)):
        raise ValueError(f"{override.input_line}: the only tag is log, of an interval: tag(log,interval(1e-4,1e-2))")
    try:
        if isinstance(value, IntervalSweep):
            kind: Any = IntDistribution if type(value.start) is int else FloatDistribution
            return kind(value.start, value.end, log=bool(tags))
        if isinstance(value, RangeSweep):
            values: list[Any] = list(override.sweep_iterator())
            if values and all(type(one) is int for one in values):
                return IntDistribution(min(values), max(values), step=abs(int(value.step)))
        return CategoricalDistribution(_values(override))
    except ValueError as error:
        raise ValueError(f"{override.input_line}: {error}") from error


def _values(override: Override) -> list[Any]:
    """Those of a choice or a range, as text for an override; of an interval its start."""
    value: Any = override.value()
    return [value.start] if isinstance(value, IntervalSweep) else list(override.sweep_string_iterator())
