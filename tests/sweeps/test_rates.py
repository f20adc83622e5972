"""A cell that lacks learning rates says so, whatever became of its runs; one that has more is no fault of the others.

`test_grid.py` is about Hydra's grids.
"""

import shutil

import fakes
import pytest

from mixerlab.records.files import run_folder
from mixerlab.records.named import write_sweep
from mixerlab.sweeps.report import report as reports
from mixerlab.sweeps.tables.collect import best_per_cell, collect
from mixerlab.sweeps.tables.keys import spread_out
from mixerlab.sweeps.tables.table_files import to_latex
from mixerlab.sweeps.tables.tables import Score, best_of, setting_table, task_table, text_of

MIXERS, TASKS = ("attn", "ema", "gru"), ("icr", "mem")
LOW, HIGH = (5e-3, 1e-3), 1e-2


def add(results, mixer, task, rates, scores):
    return fakes.add_run(results, scores, mixer=mixer, task=task, lr=rates, seed=[0, 1])


@pytest.fixture
def runs(tmp_path):
    """`run_id` by mixer, task and rates. The best rate is the largest, so that each cell has a dagger."""
    made = {}
    for mixer in MIXERS:
        for task in TASKS:
            made[mixer, task, LOW] = add(tmp_path, mixer, task, LOW, [0.40, 0.30, 0.42, 0.31])
            made[mixer, task, HIGH] = add(tmp_path, mixer, task, HIGH, [0.50, 0.52])
    write_sweep(tmp_path, "mine", fakes.configs_in(tmp_path))
    return made


@pytest.fixture(autouse=True)
def no_drawing(monkeypatch):
    monkeypatch.setattr(reports.canvas, "save", lambda figure, stem, *_: [stem.with_suffix(".png")])


def marks(cells):
    """By (mixer, task): which rates it lacks, which it has beyond the others, and whether it has a dagger."""
    return {(cell.mixer, cell.task): (cell.lacking, cell.added, cell.edge) for cell in cells.itertuples()}


def reported(results, capsys, *options):
    assert reports.main([str(results), "--selection", "official", *options]) == 0
    return capsys.readouterr().out


def test_a_whole_sweep_has_no_such_note(runs, tmp_path, capsys):
    assert "§" not in reported(tmp_path, capsys) + reported(tmp_path, capsys, "--sweep", "mine")


@pytest.mark.parametrize("options", [(), ("--sweep", "mine")])
def test_a_deleted_run_is_named_by_its_rates(runs, tmp_path, capsys, options):
    shutil.rmtree(run_folder(tmp_path, runs["attn", "icr", HIGH]))
    said = reported(tmp_path, capsys, *options)
    row = next(line for line in said.splitlines() if line.startswith("| icr"))
    _, _, attn, ema, _, _ = (entry.strip() for entry in row.split("|"))
    assert attn == "0.410 ± 0.014 (2) §" and ema == "**0.510 ± 0.014 (2) †**"
    assert "Missing: attn at 0.01 on icr (baseline)." in said
    assert ("attn 0 diverged, 2 otherwise" in said) == bool(options)


@pytest.mark.parametrize("options", [(), ("--sweep", "mine")])
@pytest.mark.parametrize("mixers", [MIXERS, ("gru",)])
def test_a_damaged_record_costs_its_rates(runs, tmp_path, capsys, options, mixers):
    """Its config says which, even where no other mixer is shown."""
    (run_folder(tmp_path, runs["gru", "mem", LOW]) / "record.json").write_text("{")
    said = reported(tmp_path, capsys, *options, "--mixer", *mixers)
    assert "Missing: gru at 0.001, 0.005 on mem (baseline)." in said
    assert "0.510 ± 0.014 (2) § " in said and said.count("unreadable: ") == 1


def test_its_sweep_tells_what_a_run_was_that_is_damaged_whole(runs, tmp_path, capsys):
    folder = run_folder(tmp_path, runs["gru", "mem", LOW])
    for name in ("record.json", "config.yaml"):
        (folder / name).write_text("{")
    assert "gru at 0.001, 0.005 on mem" in reported(tmp_path, capsys, "--sweep", "mine", "--mixer", "gru")


def test_its_sweep_tells_a_rate_that_no_run_is_left_of(runs, tmp_path, capsys):
    for task in TASKS:
        for mixer in MIXERS:
            shutil.rmtree(run_folder(tmp_path, runs[mixer, task, HIGH]))
    assert "§" not in reported(tmp_path, capsys)
    said = reported(tmp_path, capsys, "--sweep", "mine")
    assert "Missing: attn at 0.01 on icr (baseline), mem (baseline); ema at 0.01 on icr (baseline)" in said
    shutil.rmtree(run_folder(tmp_path, runs["attn", "icr", LOW]))
    said = reported(tmp_path, capsys, "--sweep", "mine")
    assert "- attn: missing on icr (baseline)." in said and "attn at 0.01 on mem (baseline)." in said


def test_a_sweep_tells_what_two_mixers_cannot(tmp_path, capsys):
    """The sweep gave attn a rate that it gave no other: only attn can lack it."""
    for mixer in ("attn", "gdn"):
        add(tmp_path, mixer, "icr", LOW, [0.4, 0.3, 0.4, 0.3])
    add(tmp_path, "attn", "icr", HIGH, [0.5, 0.5])
    write_sweep(tmp_path, "two", fakes.configs_in(tmp_path))
    said = reported(tmp_path, capsys, "--sweep", "two")
    assert "§" not in said and "which do not lack them: attn at 0.01 on icr (baseline)." in said


def test_an_added_rate_is_no_fault_of_the_others(tmp_path):
    """As `plan.py wider` adds them: for a cell with a dagger."""
    for mixer in MIXERS:
        for task in TASKS:
            add(tmp_path, mixer, task, LOW, [0.4, 0.3, 0.4, 0.3])
    for task in TASKS:
        add(tmp_path, "attn", task, HIGH, [0.5, 0.5])
    cells = best_per_cell(collect(tmp_path))
    found = marks(cells)
    assert found["attn", "icr"] == ((), (HIGH,), True)
    assert found["ema", "icr"] == found["gru", "mem"] == ((), (), True)
    (note,) = [note for note in task_table(cells).notes if "beyond" in note]
    assert note.endswith("attn at 0.01 on icr (baseline), mem (baseline).")


def test_many_cells_with_added_rates_are_counted(tmp_path):
    settings = [f"seq_len-{length}" for length in range(100, 114)]
    for setting in settings:
        for mixer in MIXERS:
            fakes.add_run(tmp_path, [0.4, 0.3], mixer=mixer, lr=LOW, setting=setting)
        if setting != settings[-1]:
            fakes.add_run(tmp_path, [0.5], mixer="attn", lr=HIGH, setting=setting)
    fakes.add_run(tmp_path, [0.5], mixer="gru", lr=2 * HIGH, setting=settings[0])
    (note,) = [note for note in setting_table(best_per_cell(collect(tmp_path))).notes if "beyond" in note]
    assert note.startswith("14 cells have learning rates beyond") and ": attn 13, gru 1 (rows.csv" in note


@pytest.mark.parametrize("trials", [2, 20])
def test_after_a_search_a_sentence_stands_for_the_rates_of_all_trials(tmp_path, trials):
    """Each trial has a rate of its own, and a column for its value of the other key."""
    for trial in range(trials):
        fakes.add_run(tmp_path, [0.5], lr=1e-3 * 1.1**trial, changed={"optimizer.weight_decay": 0.01 * trial})
    fakes.add_run(tmp_path, [0.5], mixer="gdn", task="mem", lr=1e-4, changed={"optimizer.weight_decay": 0.0})
    cells = best_per_cell(spread_out(collect(tmp_path)).frame)
    (note,) = [note for note in task_table(cells).notes if "earning rates" in note]
    assert note == f"Learning rates that no other cell of the row has: attn {trials} (rows.csv has them)."


def test_a_search_beside_a_grid_leaves_the_note_on_the_grid(tmp_path):
    for mixer, lr in zip(MIXERS, (1e-4, 2e-4, 3e-4), strict=True):
        fakes.add_run(tmp_path, [0.5], mixer=mixer, task="icr", lr=lr)
        add(tmp_path, mixer, "mem", LOW, [0.4, 0.3, 0.4, 0.3])
    add(tmp_path, "attn", "mem", HIGH, [0.5, 0.5])
    own, beyond = [note for note in task_table(best_per_cell(collect(tmp_path))).notes if "earning rates" in note][-2:]
    assert own.startswith("Learning rates that no other cell of the row has: attn 1, ema 1, gru 1 (")
    assert beyond.endswith("which do not lack them: attn at 0.01 on mem (baseline).")


def test_another_optimizer_has_a_grid_of_its_own(tmp_path):
    for mixer in MIXERS:
        add(tmp_path, mixer, "icr", LOW, [0.4, 0.3, 0.4, 0.3])
    fakes.add_run(tmp_path, [0.5], mixer="attn", lr=1e-4, changed={"optimizer.name": "adamw"})
    assert {lacking for lacking, _, _ in marks(best_per_cell(collect(tmp_path))).values()} == {()}


@pytest.mark.parametrize("status", ["failed", "diverged"])
def test_a_rate_that_diverged_was_tried_and_one_that_failed_was_not(tmp_path, status):
    add(tmp_path, "attn", "icr", LOW, [0.4, 0.3, 0.4, 0.3])
    add(tmp_path, "attn", "icr", HIGH, [status, status])
    (cell,) = best_per_cell(collect(tmp_path)).itertuples()
    assert cell.lacking == ((HIGH,) if status == "failed" else ())


def test_a_mean_with_such_a_setting_is_marked_and_never_bold(runs, tmp_path):
    shutil.rmtree(run_folder(tmp_path, runs["attn", "icr", HIGH]))
    table = task_table(best_per_cell(collect(tmp_path)))
    average = table.rows["Avg",]
    assert text_of(average["attn"]) == "0.460 ± 0.014 (2) §1 †1"
    assert best_of(average) == {"ema", "gru"}
    assert "§" in to_latex(setting_table(best_per_cell(collect(tmp_path))))


def test_nothing_is_bold_below_a_score_that_lacks_rates():
    def row(**lacking):
        means = {"attn": 0.99, "gdn": 0.60, "mamba": 0.59}
        return {
            mixer: Score(mean, {0: mean, 1: mean + 0.02}, 1, 1, 0, "ok", lacking=lacking.get(mixer, 0))
            for mixer, mean in means.items()
        }

    assert best_of(row()) == {"attn"}
    assert best_of(row(attn=1)) == set()
    assert best_of(row(gdn=1)) == {"attn"}
    assert best_of(row(attn=1, gdn=1, mamba=1)) == set()
