"""A search in place of a grid: Optuna proposes values of some keys, a run of each is trained, and says how good it was.

A trial is a run with a record like any other. One that is finished is read and not trained again, so that the same
command, whose sampler proposes the same values after the same results, goes on where it stopped.
"""

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from omegaconf import DictConfig

from mixerlab.config.postponed import GROUPS
from mixerlab.config.project import use_project
from mixerlab.config.values import is_whole_number
from mixerlab.records.atomic import replace_file
from mixerlab.records.best import ended_at_best_rate, score_of
from mixerlab.records.files import check_writable, read_record
from mixerlab.sweeps.launch.cells import ALL_SETTINGS, Cell
from mixerlab.sweeps.launch.sweep import Sweep

if TYPE_CHECKING:
    from optuna import Trial
    from optuna.distributions import BaseDistribution

TRIALS_FILE = "trials.csv"  # in the folder of the report
RANDOM_TRIALS = 5  # at the start, before the sampler has something to go by
# Keys by which runs differ only by luck, and what to write in place of a search.
_LUCK = {
    "seed": "give every run all of them, as in seed=[0,1], to search for the best mean",
    "task.data_seed": "give it one value",
    "task.map_seed": "give it one value",
}


@dataclass
class _Tried:
    """One trial: the values that were proposed, its run, and why it failed if it did.

    A failed trial has the accuracy 0 if its replicas diverged, which the sampler learns from, and else none.
    """

    trial: "Trial"
    values: dict[str, Any]
    cell: Cell | None = None
    error: str | None = None
    accuracy: float | None = None


class Search:
    """Maximises the validation accuracy of a run: of its best learning rate, averaged over the seeds (`_outcome`).

    Args:
        sweep: composes, trains and reports the runs.
        n_trials, n_jobs, seed: as for `hydra_plugins.mixerlab_optuna.OptunaSweeper`.
    """

    def __init__(self, sweep: Sweep, *, n_trials: int, n_jobs: int, seed: int):
        self.sweep, self.n_trials, self.n_jobs, self.seed = sweep, n_trials, n_jobs, seed
        self.trained: set[Path] = set()  # the runs that this search has trained: not again, even with force=true

    def run(self, overrides: list[str]) -> None:
        """Searches and reports; `overrides` are those of the command, of which some have several values.

        A failed trial is reported, and the search continues. Ends the process with a message if the search is refused
        or no trial succeeds.
        """
        parser = OverridesParser.create(config_loader=self.sweep.hydra_context.config_loader)
        parsed = parser.parse_overrides(overrides)
        try:
            use_project(self.sweep.config.hydra)
            if find_spec("optuna") is None:
                raise ValueError("hydra/sweeper=optuna needs a package that is not installed: pip install optuna")
            single = [_fixed(override) for override in parsed]
            fixed = [text for text in single if text is not None]
            if ALL_SETTINGS in fixed:
                raise ValueError(f"hydra/sweeper=optuna searches one setting of a task, not {ALL_SETTINGS}")
            searched = [override for override, text in zip(parsed, single, strict=True) if text is None]
            _check_no_luck(searched)
            space = {override.get_key_element(): _distribution(override) for override in searched}
            if not space:
                raise ValueError(
                    "hydra/sweeper=optuna has no key to search: give one several values, for example"
                    " 'optimizer.lr=tag(log,interval(1e-4,1e-2))'"
                )
            configs, left_out = self.sweep.composer.applied([[*fixed, *first] for first in _first_values(searched)])
            _check_whole_numbers(configs, searched)
            for line in left_out:
                print(line)
            if self.sweep.config.dry_run:
                self._say_space(space)
                return
            check_writable(self.sweep.config.results_dir)
        except ValueError as error:
            sys.exit(f"error: {error}")
        tried = self._search(fixed, space)
        self._report(tried)

    def _say_space(self, space: Mapping[str, "BaseDistribution"]) -> None:
        for key, distribution in space.items():
            print(f"{key}: {distribution}")
        print(f"{self.n_trials} trials")

    def _search(self, fixed: list[str], space: dict[str, "BaseDistribution"]) -> list[_Tried]:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)  # each trial gets a line of ours
        sampler = optuna.samplers.TPESampler(seed=self.seed, n_startup_trials=RANDOM_TRIALS)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        tried: list[_Tried] = []
        while len(tried) < self.n_trials:
            asked = [study.ask(space) for _ in range(min(self.n_jobs, self.n_trials - len(tried)))]
            batch = [_Tried(trial, dict(trial.params)) for trial in asked]
            self._train(batch, fixed)
            for one in batch:
                if one.accuracy is None:
                    study.tell(one.trial, state=optuna.trial.TrialState.FAIL)
                else:
                    study.tell(one.trial, one.accuracy)
                if one.error is not None:
                    print(f"trial {one.trial.number} FAILED: {one.error} ({_named(one.values)})", file=sys.stderr)
                else:
                    print(f"trial {one.trial.number}: {one.accuracy:.4f} ({_named(one.values)})", flush=True)
            tried += batch
        return tried

    def _train(self, batch: Sequence[_Tried], fixed: list[str]) -> None:
        """Trains the runs of these trials that are not finished, and sets what came of each."""
        pending: dict[Path, Cell] = {}
        for one in batch:
            try:
                one.cell = self.sweep.composer.cell([*fixed, *_overrides(one.values)])
                record = read_record(one.cell.folder)
            except ValueError as error:  # values that no run can have, or a damaged record
                one.error = str(error)
                continue
            finished = record is not None and record.status == "finished"
            if self.sweep.is_pending(one.cell, record) and not (finished and one.cell.folder in self.trained):
                pending[one.cell.folder] = one.cell
        try:
            failed = {cell.folder: reason for cell, reason in self.sweep.train(list(pending.values())).items()}
        except (ValueError, OSError) as error:  # of the launcher, or of the results folder
            sys.exit(f"error: {error}")
        self.trained |= pending.keys() - failed.keys()
        for one in batch:
            if one.cell is not None and one.error is None:
                one.error = failed.get(one.cell.folder)
                if one.error is None:
                    one.accuracy, one.error = _outcome(one.cell.folder)

    def _report(self, tried: Sequence[_Tried]) -> None:
        """Tables and figures of all runs, `trials.csv`, and the best trial."""
        cells = list({one.cell.folder: one.cell for one in tried if one.cell is not None}.values())
        if cells:
            try:
                name = self.sweep.note(cells)
                for folder in self.sweep.report_on(cells, name):
                    replace_file(folder / TRIALS_FILE, _table(tried))
            except (ValueError, OSError) as error:
                sys.exit(f"error: the trials are trained, but their report cannot be written ({error})")
        succeeded = [one for one in tried if one.error is None]
        if not succeeded:
            sys.exit(f"error: all {len(tried)} trials failed")
        best = max(succeeded, key=lambda one: one.accuracy or 0.0)  # the first of equals
        assert best.cell is not None
        print(
            f"\nbest of {len(tried)} trials ({len(tried) - len(succeeded)} failed): validation accuracy"
            f" {best.accuracy:.4f} with {' '.join(_overrides(best.values))}\nrecord: {best.cell.folder}"
        )


def _fixed(override: Override) -> str | None:
    """The override with its value, if it has a single one; None if there is something to search."""
    if not override.is_sweep_override():
        return str(override.input_line)
    if isinstance(override.value(), IntervalSweep):
        return None
    values = list(override.sweep_string_iterator())
    return f"{override.get_key_element()}={values[0]}" if len(values) == 1 else None


def _check_no_luck(searched: Sequence[Override]) -> None:
    """ValueError for a key of which the best value would be the luckiest one."""
    for override in searched:
        if (instead := _LUCK.get(override.key_or_group)) is not None:
            raise ValueError(f"{override.input_line}: a search would choose the luckiest seed; {instead}")


def _first_values(searched: Sequence[Override]) -> list[list[str]]:
    """The first value of each key, for each combination of searched mixers, tasks and so on."""
    given = []
    for override in searched:
        value = override.value()
        if isinstance(value, IntervalSweep):
            values = [str(value.start)]
        else:
            iterator = override.sweep_string_iterator()
            values = list(iterator) if override.key_or_group in GROUPS else [next(iterator)]
        given.append([f"{override.get_key_element()}={one}" for one in values])
    return [list(combination) for combination in product(*given)]


def _check_whole_numbers(configs: Sequence[DictConfig], searched: Sequence[Override]) -> None:
    """ValueError for a key that takes whole numbers only, and for which Optuna would propose fractions."""
    for override in searched:
        fix = _fix_of_fractions(override)
        if fix is not None and any(is_whole_number(cfg, override.key_or_group) for cfg in configs):
            raise ValueError(f"{override.input_line}: {override.key_or_group} takes whole numbers only{fix}")


def _fix_of_fractions(override: Override) -> str | None:
    """How to get rid of fractions among the values, as the end of a message; None if there are none."""
    value = override.value()
    if isinstance(value, IntervalSweep):
        key, _, interval = str(override.input_line).partition("=")
        is_whole = type(value.start) is int
        return None if is_whole else f", and an interval has fractions; write '{key}=int({interval})'"
    fractions = [str(one) for one in override.sweep_iterator() if isinstance(one, float)]
    if not fractions:
        return None
    return f", and {' and '.join(fractions)} {'is' if len(fractions) == 1 else 'are'} none"


def _distribution(override: Override) -> "BaseDistribution":
    """What Optuna may choose from; ValueError for what it cannot."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    key, value = override.get_key_element(), override.value()
    tags: set[str] = set(getattr(value, "tags", ()))
    by_logarithm = "log" in tags
    if unknown := tags - {"log"}:
        raise ValueError(f"{override.input_line}: the tag {min(unknown)} says nothing here; write tag(log,...)")
    if isinstance(value, IntervalSweep):
        assert value.start is not None and value.end is not None  # the grammar wants both
        try:
            if type(value.start) is int:
                return IntDistribution(value.start, int(value.end), log=by_logarithm)
            return FloatDistribution(value.start, value.end, log=by_logarithm)
        except ValueError as error:
            raise ValueError(f"{override.input_line}: {error}") from error
    if by_logarithm:
        raise ValueError(f"{override.input_line}: tag(log,...) is for an interval, for example interval(1e-4,1e-2)")
    if isinstance(value, RangeSweep) and type(value.start) is type(value.stop) is type(value.step) is int:
        numbers = list(value.range())
        if numbers and value.step > 0:
            return IntDistribution(numbers[0], numbers[-1], step=int(value.step))
    choices = list(override.sweep_string_iterator())
    if not choices:
        raise ValueError(f"{key} has no value to choose from: {override.input_line}")
    return CategoricalDistribution(choices)


def _outcome(folder: Path) -> tuple[float | None, str | None]:
    """The accuracy of a run for the sampler, in which a diverged replica counts as 0, and why the trial failed."""
    record = read_record(folder)
    assert record is not None, "it has just been trained or found"
    if chosen := ended_at_best_rate(record.rows):
        return fmean(score_of(row, "clean_val_accuracy") for row in chosen), None
    if any(row["status"] == "diverged" for row in record.rows):
        return 0.0, "no replica finished, and a diverged one counts as accuracy 0"
    return None, "no replica finished"


def _overrides(values: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def _named(values: Mapping[str, Any]) -> str:
    return " ".join(
        f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in values.items()
    )


def _table(tried: Sequence[_Tried]) -> str:
    text = io.StringIO()
    keys = list(tried[0].values)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["trial", "clean_val_accuracy", *keys, "run_id", "error"])
    for one in tried:
        identity = one.cell.run_id if one.cell is not None else ""
        writer.writerow([one.trial.number, one.accuracy, *(one.values[key] for key in keys), identity, one.error])
    return text.getvalue()
