"""How many runs solved a cell and how soon, from new records and old ones, and intervals over seeds."""

import math

import fakes
import numpy as np
import pandas as pd
import pytest

from mixerlab.records.files import RECORD_FILE, read_metrics, read_record, run_folder, write_metrics, write_record
from mixerlab.sweeps.tables.collect import best_per_cell, collect
from mixerlab.sweeps.tables.intervals import bootstrap, interval
from mixerlab.sweeps.tables.solved import SOLVED as SOLVED_IN_TABLES
from mixerlab.sweeps.tables.solved import counts, known_steps, solved_csv, solved_markdown, steps_in
from mixerlab.sweeps.tables.table_files import intervals_csv, to_markdown
from mixerlab.sweeps.tables.tables import task_table
from mixerlab.training.metrics import SOLVED, metrics_rows, summarise


def test_records_and_tables_mean_the_same_by_solved():
    assert SOLVED == SOLVED_IN_TABLES  # in two places, since sweeps import nothing of training


@pytest.mark.parametrize(("towards", "steps"), [(0, math.inf), (0.9, 100), (1, 100)])
def test_a_record_and_its_metrics_agree_on_float32_accuracies_next_to_solved(tmp_path, towards, steps):
    """float32 0.9 is below 0.9, and `metrics.csv`, with seven significant digits, has it as 0.9."""
    accuracy = np.nextafter(np.float32(SOLVED), np.float32(towards)).item()
    measured = dict(accuracy=accuracy, token_accuracy=accuracy, loss=1.0, perplexity=3.0)
    epoch = {f"{split}_{name}": [value] for split in ("val", "test") for name, value in measured.items()}
    epoch |= {"epoch": 0, "steps": [100], "active": [True], "diverged": [False], "train_loss": [1.0]}
    epoch |= {"learning_rate": [1e-3]}
    write_metrics(tmp_path, pd.DataFrame(metrics_rows([epoch], [(1e-3, 0)])))
    assert steps_in(read_metrics(tmp_path), [0]) == {0: steps}
    assert known_steps(summarise([epoch], 0)) == steps


def add_run(results, scores, steps, **overrides):
    """A run whose replicas took `steps` to 0.9."""
    identity = fakes.add_run(results, scores, **overrides)
    path = run_folder(results, identity) / RECORD_FILE
    record = read_record(path.parent)
    for row, value in zip(record.rows, steps, strict=True):
        row["steps_to_90"] = value
    write_record(path.parent, record, replaces=path.read_bytes())
    return identity


def test_new_records_say_it_and_never_is_no_number(tmp_path):
    add_run(tmp_path, [0.5, 0.95, "diverged"], [None, 1200, None])
    assert collect(tmp_path)["steps_to_90"].tolist() == [math.inf, 1200, math.inf]
    cell = best_per_cell(collect(tmp_path)).iloc[0]
    assert (cell["solved"], cell["known"], cell["solved_by_seed"]) == (1, 3, {0: pytest.approx(1 / 3)})


def test_tables_of_shares_and_median_steps(tmp_path):
    add_run(tmp_path, [0.5, 0.95, 0.99, 0.2, 0.95, 0.99], [None, 1200, 600, None, 1400, 600], seed=[0, 1])
    add_run(tmp_path, [0.5, 0.5, 0.5], [None] * 3, mixer="gdn", task="mem")
    cells = best_per_cell(collect(tmp_path))
    assert solved_markdown(cells).splitlines()[4:] == [
        "| task | setting | attn | gdn |",
        "|---|---|---|---|",
        "| icr | baseline | 4/6, 1,300 | - |",  # of 600, 600, 1,200, 1,400 and two that never did,
        "| mem | baseline | - | 0/3, - |",
    ]
    lines = solved_csv(cells).splitlines()
    assert lines[1] == "icr,baseline,attn,4,6,0.6666666666666666,0.6666666666666666,1300.0,0.99,2,0.99,0.99"
    assert lines[4] == "mem,baseline,gdn,0,3,,,,0.5,1,,"


def test_few_fast_runs_have_no_median_that_looks_fast():
    """A run that never solved the cell is later than any: without it, 2 of 4 would look faster than 3 of 4."""
    never = math.inf
    assert counts((0, steps) for steps in (1700.0, 1800.0, never, never))["steps_to_90"] is None
    assert counts((0, steps) for steps in (1700.0, 3700.0, 4100.0, never))["steps_to_90"] == 3900
    assert counts((0, steps) for steps in (1700.0, 1800.0, never, math.nan))["steps_to_90"] == 1800
    assert counts((0, steps) for steps in (never, math.nan))["steps_to_90"] is None
    assert counts([(0, math.nan)]) == {"known": 0, "solved": 0, "solved_by_seed": {}, "steps_to_90": None}
    mixed = counts([(1, 100.0), (0, never), (1, never), (0, never)])
    assert (mixed["known"], mixed["solved"], mixed["solved_by_seed"]) == (4, 1, {0: 0.0, 1: 0.5})


def test_the_interval_of_the_share_is_over_seeds(tmp_path):
    add_run(tmp_path, [0.95, 0.95, 0.95, 0.5, 0.5, 0.95], [100, 200, 300, None, None, 400], seed=[0, 1])
    line = solved_csv(best_per_cell(collect(tmp_path))).splitlines()[1].split(",")
    assert [float(value) for value in line[3:8]] == pytest.approx([4, 6, 1 / 3, 1.0, 350])


def test_the_interval_of_a_mean():
    """Student's: 4.303 is the 97.5 % quantile of t for two degrees of freedom."""
    assert interval([0.5]) is None
    assert interval([0.5, 0.52, 0.54]) == pytest.approx((0.52 - 4.303 * 0.02 / 3**0.5, 0.52 + 4.303 * 0.02 / 3**0.5))
    assert interval([0.4, 0.6]) == (0.0, 1.0)  # an accuracy is in [0, 1]
    assert interval([0.99, 1.0, 1.0])[1] == 1.0
    assert interval([0.7] * 4) == pytest.approx((0.7, 0.7))


def test_the_interval_covers_the_mean_as_often_as_it_says():
    """The bootstrap does not: its 95 % are 75 % of three seeds."""
    drawn = np.random.default_rng(0).normal(0.5, 0.02, (2000, 3))
    covered = {
        kind: np.mean([found[0] <= 0.5 <= found[1] for found in map(kind, drawn.tolist())])
        for kind in (interval, bootstrap)
    }
    assert covered[interval] == pytest.approx(0.95, abs=0.015)
    assert covered[bootstrap] == pytest.approx(0.75, abs=0.03)


def test_the_bootstrap_interval():
    assert bootstrap([0.5]) is None
    assert bootstrap([0.4, 0.6]) == pytest.approx((0.4, 0.6))
    assert bootstrap([0.0, 0.3, 0.9]) == pytest.approx((0.0, 0.9))  # each end is 1 of 27 resamples: above 2.5 %
    low, high = bootstrap([0.0, 0.3, 0.6, 0.9])  # 1 of 256 is below it
    assert 0 < low < 0.2 and 0.7 < high < 0.9
    assert bootstrap([0.7] * 4) == pytest.approx((0.7, 0.7))
    many = bootstrap([0.1 * (seed % 2) for seed in range(100)])
    assert many == pytest.approx((0.05 - 0.0098, 0.05 + 0.0098), abs=2e-3)
    assert many == bootstrap([0.1 * (seed % 2) for seed in range(100)])


def test_intervals_of_task_means(tmp_path):
    fakes.add_run(tmp_path, [0.71, 0.69], lr=1e-3, seed=[0, 1])
    fakes.add_run(tmp_path, [0.51, 0.49], lr=1e-3, seed=[0, 1], setting="seq_len-256")
    fakes.add_run(tmp_path, [0.5], lr=1e-3, mixer="gdn")
    lines = intervals_csv(task_table(best_per_cell(collect(tmp_path)))).splitlines()
    assert lines[0] == "task,mixer,mean,settings,of,n,low,high"
    attn, gdn = (line.split(",") for line in lines[1:])
    assert [float(value) for value in attn[2:]] == pytest.approx([0.6, 2, 2, 2, 0.6 - 0.12706, 0.6 + 0.12706])
    assert gdn == ["icr", "gdn", "0.5", "1", "2", "1", "", ""]


@pytest.mark.parametrize(("other", "bold"), [([0.85, 0.95], True), ([0.80, 0.84], True), ([0.80, 0.81], False)])
def test_bold_are_all_that_may_be_the_best(tmp_path, other, bold):
    """Two seeds part two mixers only if their differences are nearly the same: 0.10 and 0.08 do not."""
    fakes.add_run(tmp_path, [0.90, 0.92], lr=1e-3, seed=[0, 1])
    fakes.add_run(tmp_path, other, lr=1e-3, seed=[0, 1], mixer="gdn")
    row = to_markdown(task_table(best_per_cell(collect(tmp_path)))).splitlines()[2]
    assert row.count("**") == (4 if bold else 2)
    assert "**0.910" in row


def test_nothing_is_bold_where_no_two_entries_share_two_seeds(tmp_path):
    for mixer, scores in (("attn", [0.9]), ("gdn", [0.5])):
        fakes.add_run(tmp_path, scores, lr=1e-3, mixer=mixer)
    text = to_markdown(task_table(best_per_cell(collect(tmp_path))))
    assert "**" not in text and "- One seed: nothing is bold, since nothing says how far seeds differ." in text
    for mixer, scores in (("mamba", [0.4, 0.41, 0.42]), ("mesa", [0.6, 0.61, 0.62])):
        fakes.add_run(tmp_path, scores, lr=1e-3, seed=[0, 1, 2], mixer=mixer)
    text = to_markdown(task_table(best_per_cell(collect(tmp_path))))
    assert "**" not in text and "Nothing is bold if no other score shares two seeds with the highest." in text
    fakes.add_run(tmp_path, [0.91, 0.92], lr=1e-3, seed=[1, 2])  # attn again
    text = to_markdown(task_table(best_per_cell(collect(tmp_path))))
    assert text.count("**") == 2 and "**0.910" in text and "Two seeds tell apart" not in text


def test_an_entry_alone_is_not_bold(tmp_path):
    fakes.add_run(tmp_path, [0.9, 0.91, 0.92], lr=1e-3, seed=[0, 1, 2])
    assert "**" not in to_markdown(task_table(best_per_cell(collect(tmp_path))))


def test_of_two_seeds_the_note_says_how_little_they_tell(tmp_path):
    for mixer in ("attn", "gdn"):
        fakes.add_run(tmp_path, [0.9, 0.91], lr=1e-3, seed=[0, 1], mixer=mixer)
    assert any(
        note.startswith("Two seeds tell apart only") for note in task_table(best_per_cell(collect(tmp_path))).notes
    )
