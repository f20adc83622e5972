"""What the best learning rate of a cell reached, when its grid should be wider, and which rates it lacks."""

import math
import shutil
from itertools import permutations

import fakes
import pytest

from mixerlab.records.best import best_trial
from mixerlab.records.files import run_folder
from mixerlab.records.identity import run_id
from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.collect import collect
from mixerlab.sweeps.tables.intervals import error_of_mean, half_width, interval_text, mean_text, solved_counts
from mixerlab.sweeps.tables.published import at_rate_of_task
from mixerlab.sweeps.tables.swept import spread_out
from mixerlab.sweeps.tables.tables import task_table

LOW, HIGH = (1e-3, 5e-3), 1e-2


def only_cell(results, selection="official"):
    (cell,) = best_per_cell(fakes.frame_of(results, by=[]), selection).itertuples()
    return cell


def trial_rows(scores):
    """Rows from the accuracy by seed of each rate; in its place a status."""
    return [
        {
            "lr": lr,
            "seed": seed,
            "status": score if isinstance(score, str) else "finished",
            "official_accuracy": None if isinstance(score, str) else score,
        }
        for lr, by_seed in scores.items()
        for seed, score in by_seed.items()
    ]


@pytest.mark.parametrize("newest", [0, 1])
def test_of_a_replica_in_several_populations_the_newest_counts(tmp_path, newest):
    for number, (lr, scores) in enumerate([(LOW, (0.9, 0.8)), ((*LOW, HIGH), (0.3, 0.2, 0.1))]):
        told = {"started_at": f"2026-01-0{1 + (number == newest)}T12:00:00+00:00"}
        fakes.add_run(tmp_path, scores, lr=lr, provenance=told)
    fakes.add_run(tmp_path, ["failed"], lr=LOW[0], provenance={"started_at": "2026-01-03T12:00:00+00:00"})
    assert only_cell(tmp_path).mean == (0.9, 0.3)[newest]
    assert list(at_rate_of_task(fakes.frame_of(tmp_path))) == [(0.9, 0.3)[newest]]
    fakes.add_run(tmp_path, ["diverged"], lr=1e-3, provenance={"started_at": "2026-01-04T12:00:00+00:00"})
    assert only_cell(tmp_path).mean == (0.8, 0.2)[newest]


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        # More seeds do not make a bad rate the best.
        ({5e-3: {0: 0.3, 1: 0.2}, 1e-3: {0: 1.0}}, 1e-3),
        ({5e-3: dict.fromkeys(range(5), 0.4), 1e-3: {0: 1.0}}, 1e-3),
        # Nor does a mean over the easy seed alone: on the seed that both have, they are equal, or nearly.
        ({5e-3: {0: 1.0, 1: 0.206}, 1e-3: {0: 1.0}}, 5e-3),
        ({5e-3: {0: 0.9998, 1: 0.206}, 1e-3: {0: 1.0}}, 5e-3),
        # What it lacks is taken to be as bad as the worst there.
        ({5e-4: {0: 0.5, 1: 0.5}, 1e-3: {0: 0.7, 1: 0.7}, 5e-3: {0: 0.8}}, 1e-3),
        # A divergence is no gap but a failure.
        ({5e-3: {0: 0.5, 1: 0.5}, 1e-3: {0: 0.9, 1: "diverged"}}, 5e-3),
        ({5e-3: {0: 0.5, 1: 0.5}, 1e-3: {0: 0.9, 1: "failed"}}, 1e-3),
        # No seed in common.
        ({5e-3: {0: 0.5}, 1e-3: {1: 0.9}}, 1e-3),
        # A seed at which all diverged says nothing.
        ({5e-3: {0: 0.5, 1: "diverged"}, 1e-3: {0: 0.505}}, 1e-3),
    ],
)
def test_rates_are_compared_on_the_same_seeds(scores, best):
    for order in permutations(scores.items()):
        rows, _ = best_trial(trial_rows(dict(order)), "official")
        assert {row["lr"] for row in rows} == {best}
        finished = [seed for seed, score in scores[best].items() if not isinstance(score, str)]
        assert [row["seed"] for row in rows] == finished


@pytest.mark.parametrize(
    ("scores", "lr", "mean", "edge"),
    [
        ([0.5, 0.9, 0.7], 1e-3, 0.9, False),
        ([0.9, 0.5, 0.7], 5e-4, 0.9, True),
        ([1.0, 1.0, 1.0], 1e-3, 1.0, False),  # a tie that includes an inner one
        ([0.9, 0.8, 0.9], 5e-4, 0.9, True),  # a tie between both edges
        ([0.5, 0.89, 0.9], 5e-3, 0.9, False),  # no more than 0.01 ahead of an inner one
        ([0.5, 0.7, "diverged"], 1e-3, 0.7, False),  # the diverged one belongs to the grid
        (["failed", 0.1, 0.0], 1e-3, 0.1, False),
    ],
)
def test_the_best_learning_rate(tmp_path, scores, lr, mean, edge):
    fakes.add_run(tmp_path, scores)
    cell = only_cell(tmp_path)
    assert (cell.lr, cell.mean, cell.entry.edges, cell.n) == (lr, mean, edge, 1)


@pytest.mark.parametrize(("score", "wider"), [(0.99, False), (0.97, True)])
def test_near_perfect_is_the_mean_over_the_seeds_of_the_rate(score, wider):
    """The other seed counts against it among the rates, and not in what the tables show."""
    assert best_trial(trial_rows({1e-3: {0: score}, 5e-3: {0: 0.5, 1: 0.3}}), "official")[1] == wider


def test_clean_chooses_on_validation_and_reports_test(tmp_path):
    fakes.add_run(tmp_path, [(0.9, 0.6), (0.7, 0.8), (0.8, 0.7)])
    official, clean = only_cell(tmp_path, "official"), only_cell(tmp_path, "clean")
    assert ((official.lr, official.mean), (clean.lr, clean.mean)) == ((5e-4, 0.9), (1e-3, 0.7))


def test_seeds_share_one_learning_rate_and_may_be_of_separate_runs(tmp_path):
    # By seed the best would be 0.9 and 0.8; one learning rate for both gives 0.75 or 0.7 or 0.6.
    identities = [fakes.add_run(tmp_path, [0.9, 0.7, 0.6], seed=3), fakes.add_run(tmp_path, [0.5, 0.8, 0.6], seed=4)]
    cell = only_cell(tmp_path)
    assert (cell.lr, cell.n, cell.mean, cell.configs) == (1e-3, 2, pytest.approx(0.75), 1)
    assert cell.entry.by_seed == {3: 0.7, 4: 0.8} and cell.replicas == [(identity, 1) for identity in identities]


def test_configurations_compete_and_are_not_averaged(tmp_path):
    fakes.add_run(tmp_path, [0.5, 0.7, 0.6])
    fakes.add_run(tmp_path, [0.5, 0.6, 0.8], num_heads=4)
    fakes.add_run(tmp_path, ["failed"] * 3, num_heads=3)
    cell = only_cell(tmp_path)
    assert (cell.mean, cell.lr, cell.n, cell.configs, cell.entry.edges) == (0.8, 5e-3, 1, 2, True)


def test_a_sweep_knows_the_rates_of_deleted_runs(tmp_path):
    """The best rate is the largest, but no grid should be wider while it is incomplete."""
    for rates, scores in ((LOW, [0.30, 0.40]), ([HIGH], [0.50])):
        fakes.add_run(tmp_path, scores, lr=rates)
    configs = fakes.by_run_id(*(fakes.config(lr=rates) for rates in (LOW, [HIGH])))
    assert only_cell(tmp_path).entry.edges and not only_cell(tmp_path).lacking
    shutil.rmtree(run_folder(tmp_path, run_id(fakes.config(lr=[HIGH]))))
    cells = best_per_cell(spread_out(collect(tmp_path, configs)))
    (cell,) = cells.itertuples()
    assert (cell.lr, cell.lacking, cell.entry.edges) == (5e-3, (HIGH,), 0)
    assert [entry.incomplete for entry in task_table(cells).entries] == [True]


@pytest.mark.parametrize("status", ["failed", "diverged"])
def test_a_rate_that_diverged_was_tried_and_one_that_failed_was_not(tmp_path, status):
    fakes.add_run(tmp_path, [0.4, 0.3, status], lr=[*LOW, HIGH])
    assert only_cell(tmp_path).lacking == ((HIGH,) if status == "failed" else ())


def test_a_median_of_steps_counts_those_that_never_solved_it():
    counts = solved_counts([600.0, math.inf, 1200.0, 1400.0, math.nan])
    assert counts == {"known": 4, "solved": 3, "steps_to_90": 1300.0}
    assert solved_counts([600.0, math.inf])["steps_to_90"] is None and solved_counts([])["steps_to_90"] is None


def test_intervals_over_seeds():
    """Standard errors 0.1 / sqrt(3) and 0.03 / sqrt(3); their sum has 2.4 degrees of freedom."""
    one, other = error_of_mean([0.5, 0.6, 0.7]), error_of_mean([0.77, 0.80, 0.83])
    assert half_width(one) == pytest.approx(4.303 * 0.1 / 3**0.5) == pytest.approx(0.2484, abs=1e-4)
    assert half_width(one, other) == pytest.approx(4.303 * (0.0109 / 3) ** 0.5)
    assert interval_text(-0.2, one, other, form="+.2f") == "-0.20 ± 0.26"
    assert interval_text(0.6, error_of_mean([0.6])) == "0.600" and mean_text([0.6, 0.6], ".2f") == "0.60 ± 0.00"
