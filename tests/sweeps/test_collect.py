"""From records to one row per replica and one row per cell, with every gap in sight."""

import math

import fakes
import pandas as pd
import pytest

from mixerlab.records.files import run_folder, write_config, write_record
from mixerlab.records.identity import run_id
from mixerlab.records.schema import failed_record
from mixerlab.sweeps.report.report import report
from mixerlab.sweeps.tables.collect import best_per_cell, collect, complaints


@pytest.fixture
def results(tmp_path):
    return tmp_path


def only_cell(results, selection="official", **kwargs):
    cells = best_per_cell(collect(results), selection, **kwargs)
    assert len(cells) == 1
    return cells.iloc[0]


def test_one_row_per_replica_with_everything_in_it(results):
    identity = fakes.add_run(results, [0.5, 0.75, "diverged"], mixer="gdn", setting="seq_len-256")
    frame = collect(results)
    assert len(frame) == 3
    row = frame.iloc[1]
    assert (row["run_id"], row["mixer"], row["task"], row["setting"]) == (identity, "gdn", "icr", "seq_len-256")
    assert (row["lr"], row["seed"], row["replica"], row["weight_decay"]) == (1e-3, 0, 1, 0.1)
    assert (row["task.seq_len"], row["mixer.num_heads"], row["optimizer.betas"]) == (256, 8, "[0.8, 0.95]")
    assert (row["official_accuracy"], row["num_params"], row["status"]) == (0.75, 407_184, "finished")
    assert (row["device"], row["versions.torch"], row["wall_time_s"]) == ("cpu", "2.13.0", 1.5)
    assert frame["status"].tolist() == ["finished", "finished", "diverged"]
    assert pd.isna(frame["official_accuracy"].iloc[2])
    assert frame["config"].nunique() == 1


def test_what_failed_or_never_ended_or_cannot_be_read_is_a_row(results):
    fakes.add_run(results, [0.5, 0.6, 0.7])
    failed = fakes.config(mixer="gdn")
    write_config(run_folder(results, run_id(failed)), failed)
    write_record(run_folder(results, run_id(failed)), failed_record(failed, "CUDA out of memory", {}))
    killed = fakes.config(mixer="mesa", lr=1e-3)
    write_config(run_folder(results, run_id(killed)), killed)
    broken = run_folder(results, "broken")
    broken.mkdir()
    (broken / "record.json").write_text("{")
    nameless = run_folder(results, "nameless")  # a record that does not say of what
    nameless.mkdir()
    (nameless / "record.json").write_text("{}")
    claimed = run_folder(results, "claimed")
    claimed.mkdir()
    frame = collect(results)
    counts = frame.groupby("run_id")["status"].agg(["first", "count"])
    assert counts.loc[run_id(failed)].tolist() == ["failed", 3]
    assert counts.loc[run_id(killed)].tolist() == ["unfinished", 1]
    assert counts.loc["broken"].tolist() == ["unreadable", 1]
    assert "claimed" not in counts.index
    assert set(frame.loc[frame["mixer"] == "gdn", "error"]) == {"CUDA out of memory"}
    assert any(f"{broken}/record.json cannot be read" in line for line in complaints(frame))
    status = best_per_cell(frame).set_index("mixer")["status"]
    assert status.to_dict() == {"attn": "ok", "gdn": "failed", "mesa": "missing"}


def test_only_the_runs_asked_for(results):
    wanted = fakes.add_run(results, [0.5, 0.6, 0.7])
    fakes.add_run(results, [0.5, 0.6, 0.7], mixer="gdn")
    assert set(collect(results, fakes.by_run_id(fakes.config()))["run_id"]) == {wanted}


def test_a_run_asked_for_that_has_left_nothing_is_missing(results):
    fakes.add_run(results, [0.5, 0.6, 0.7])
    gone = fakes.config(mixer="gdn", lr=[1e-3, 1e-2], seed=[0, 1])
    frame = collect(results, fakes.by_run_id(fakes.config(), gone))
    missing = frame[frame["mixer"] == "gdn"]
    assert missing[["status", "lr", "seed"]].values.tolist() == [
        ["missing", lr, seed] for seed in (0, 1) for lr in (1e-3, 1e-2)
    ]
    assert set(missing["run_id"]) == {run_id(gone)} and set(frame["status"]) == {"finished", "missing"}


def test_an_empty_folder_gives_an_empty_frame(results):
    assert collect(results).empty
    assert best_per_cell(collect(results)).empty


@pytest.mark.parametrize(
    ("scores", "lr", "accuracy", "edge"),
    [
        ([0.5, 0.9, 0.7], 1e-3, 0.9, False),
        ([0.9, 0.5, 0.7], 5e-4, 0.9, True),
        ([0.5, 0.7, 0.9], 5e-3, 0.9, True),
        ([1.0, 1.0, 1.0], 1e-3, 1.0, False),  # a tie that includes an inner one
        ([0.9, 0.8, 0.9], 5e-4, 0.9, True),  # a tie between both edges
        ([0.5, 0.89, 0.9], 5e-3, 0.9, False),  # no more than 0.01 ahead of an inner one
        ([0.5, 0.88, 0.9], 5e-3, 0.9, True),
        ([0.5, 0.7, 0.98], 5e-3, 0.98, False),  # solved
        ([0.5, 0.7, "diverged"], 1e-3, 0.7, False),  # the diverged one belongs to the grid
        (["failed", 0.1, 0.0], 1e-3, 0.1, False),
    ],
)
def test_the_best_learning_rate(results, scores, lr, accuracy, edge):
    fakes.add_run(results, scores)
    cell = only_cell(results)
    assert (cell["lr"], cell["accuracy"], cell["edge"], cell["n"]) == (lr, accuracy, edge, 1)
    assert cell["status"] == ("ok" if all(isinstance(score, float) for score in scores) else "partial")
    assert pd.isna(cell["std"])


def test_one_learning_rate_has_no_edge(results):
    fakes.add_run(results, [0.5], lr=1e-3)
    assert not only_cell(results)["edge"]


def test_clean_chooses_on_validation_and_reports_test(results):
    fakes.add_run(results, [(0.9, 0.6), (0.7, 0.8), (0.8, 0.7)])
    official, clean = only_cell(results, "official"), only_cell(results, "clean")
    assert (official["lr"], official["accuracy"]) == (5e-4, 0.9)
    assert (clean["lr"], clean["accuracy"]) == (1e-3, 0.7)


def test_seeds_share_one_learning_rate(results):
    # By seed the best would be 0.9 and 0.8; one learning rate for both gives 0.75 or 0.7 or 0.6.
    identity = fakes.add_run(results, [0.9, 0.7, 0.6, 0.5, 0.8, 0.6], seed=[3, 4])
    cell = only_cell(results)
    assert (cell["lr"], cell["n"]) == (1e-3, 2)
    assert cell["accuracy"] == pytest.approx(0.75)
    assert cell["std"] == pytest.approx(0.05 * math.sqrt(2))
    assert cell["by_seed"] == {3: 0.7, 4: 0.8}
    assert cell["replicas"] == [(identity, 1), (identity, 4)]


def test_seeds_of_separate_runs_are_one_cell(results):
    fakes.add_run(results, [0.5, 0.7, 0.6], seed=0)
    fakes.add_run(results, [0.5, 0.9, 0.6], seed=1)
    cell = only_cell(results)
    assert (cell["accuracy"], cell["n"], cell["configs"]) == (pytest.approx(0.8), 2, 1)


def test_a_learning_rate_that_lost_a_seed_comes_last(results):
    fakes.add_run(results, [0.5, 0.9, 0.6, 0.5, "diverged", 0.6], seed=[0, 1])
    cell = only_cell(results)
    assert (cell["lr"], cell["accuracy"], cell["n"]) == (5e-3, pytest.approx(0.6), 2)
    assert (cell["diverged"], cell["lost"], cell["status"]) == (1, 0, "partial")


def test_a_learning_rate_without_a_seed_that_others_have_comes_last(results):
    fakes.add_run(results, [0.5, 0.7, 0.8], seed=0)
    fakes.add_run(results, [0.5, 0.7], lr=[5e-4, 1e-3], seed=1)
    cell = only_cell(results)
    assert (cell["accuracy"], cell["n"], cell["lost"], cell["status"]) == (pytest.approx(0.7), 2, 0, "ok")


def test_a_configuration_with_fewer_seeds_than_another_comes_last(results):
    fakes.add_run(results, [0.8, 0.6, 0.7], lr=1e-3, seed=[0, 1, 2])
    fakes.add_run(results, [0.8], lr=1e-3, num_heads=2)  # which says no more than the first seed above
    (cell,) = best_per_cell(collect(results)).to_dict("records")
    assert (cell["n"], cell["configs"], cell["accuracy"]) == (3, 2, pytest.approx(0.7))


def test_the_same_replica_in_two_populations_counts_once(results):
    fakes.add_run(results, [0.5, 0.7, 0.6])
    fakes.add_run(results, ["failed", 0.6], lr=[1e-3, 5e-3])
    cell = only_cell(results)
    assert (cell["accuracy"], cell["n"], cell["lost"], cell["status"]) == (0.7, 1, 0, "ok")


def test_numbers_that_are_equal_are_one_configuration(results):
    for seed, betas in ((0, [0.8, 1]), (1, [0.8, 1.0])):
        equal = fakes.config(seed=seed)
        equal["optimizer"] |= {"betas": betas, "max_grad_norm": betas[1]}
        write_config(run_folder(results, run_id(equal)), equal)
        write_record(run_folder(results, run_id(equal)), fakes.record(equal, [0.5, 0.6, 0.7 + 0.1 * seed]))
    cell = only_cell(results)
    assert (cell["configs"], cell["n"], cell["accuracy"]) == (1, 2, pytest.approx(0.75))


def test_configurations_compete_and_are_not_averaged(results):
    fakes.add_run(results, [0.5, 0.7, 0.6])
    fakes.add_run(results, [0.5, 0.6, 0.8], num_heads=4)
    cell = only_cell(results)
    assert (cell["accuracy"], cell["lr"], cell["n"], cell["configs"]) == (0.8, 5e-3, 1, 2)
    assert cell["edge"]


def test_a_configuration_that_failed_has_not_competed(results):
    fakes.add_run(results, [0.5, 0.7, 0.6])
    fakes.add_run(results, ["failed"] * 3, num_heads=3)
    cell = only_cell(results)
    assert (cell["configs"], cell["lost"]) == (1, 3)
    fakes.add_run(results, ["diverged"] * 3, num_heads=4)
    assert only_cell(results)["configs"] == 2


def test_no_score_at_all(results):
    fakes.add_run(results, ["diverged", "failed", "diverged"])
    fakes.add_run(results, ["failed"] * 3, mixer="gdn")
    asked = fakes.configs_in(results) | fakes.by_run_id(fakes.config(mixer="mesa", task="sc"))
    cells = best_per_cell(collect(results, asked))
    status = cells.set_index(["mixer", "task"])["status"].to_dict()
    assert status == {
        ("attn", "icr"): "diverged",
        ("gdn", "icr"): "failed",
        ("mesa", "icr"): "missing",  # every mixer against every setting
        ("attn", "sc"): "missing",
        ("gdn", "sc"): "missing",
        ("mesa", "sc"): "missing",
    }
    assert cells["accuracy"].isna().all()
    assert (cells["n"] == 0).all()


def test_order_of_cells(results):
    for mixer in ("zeta", "mesa", "attn", "alpha"):
        fakes.add_run(results, [0.5, 0.6, 0.7], mixer=mixer)
    for task in ("zz_task", "mem", "aa_task"):
        fakes.add_run(results, [0.5, 0.6, 0.7], task=task)
    for setting in ("vocab_size-64", "seq_len-1024", "seq_len-256", "seq_len=64,vocab_size=32"):
        fakes.add_run(results, [0.5, 0.6, 0.7], setting=setting, data_seed=len(setting))
    cells = best_per_cell(collect(results))
    assert list(dict.fromkeys(cells["task"])) == ["icr", "mem", "aa_task", "zz_task"]
    assert list(dict.fromkeys(cells["mixer"])) == ["attn", "mesa", "alpha", "zeta"]
    icr = cells[(cells["task"] == "icr") & (cells["mixer"] == "attn")]["setting"].tolist()
    axes = ["seq_len-256", "seq_len-1024", "vocab_size-64"]
    assert icr == ["baseline", *axes, "seq_len=64,vocab_size=32"]


def test_keys_that_came_later_do_not_part_older_records_from_newer_ones(results):
    fakes.add_run(results, [0.5, 0.6, 0.7])
    fakes.add_run(results, [0.5, 0.6, 0.7], mixer="gdn")
    newer = fakes.config(seed=1)
    newer["model"] |= {"linear_std": None, "autoencoder_redraw_all": False}
    write_config(run_folder(results, run_id(newer)), newer)
    write_record(run_folder(results, run_id(newer)), fakes.record(newer, [0.5, 0.6, 0.9]))
    frame = collect(results)
    assert frame.loc[frame["mixer"] == "attn", "config"].nunique() == 1
    assert complaints(frame) == []
    other = fakes.config(seed=2)
    other["model"] |= {"linear_std": 0.02}
    write_config(run_folder(results, run_id(other)), other)
    write_record(run_folder(results, run_id(other)), fakes.record(other, [0.5, 0.6, 0.9]))
    (complaint,) = complaints(collect(results))
    assert complaint.startswith("The mixers differ in more than the mixer: model.linear_std")


def test_two_problems_under_one_name_are_reported(results):
    fakes.add_run(results, [0.5, 0.6, 0.7])
    assert complaints(collect(results)) == []
    fakes.add_run(results, [0.5, 0.6, 0.7], vocab_size=32)
    (complaint,) = complaints(collect(results))
    assert complaint == "icr baseline: runs with different task.vocab_size share this name (16, 32)"


def test_mixers_that_were_trained_otherwise_are_reported(results):
    for mixer in ("attn", "mesa"):
        fakes.add_run(results, [0.5, 0.6, 0.7], mixer=mixer)
    frame = collect(results)
    assert complaints(frame) == []
    frame.loc[frame["mixer"] == "mesa", ["epochs", "optimizer", "optimizer.betas"]] = [80, "adamw", "[0.9, 0.95]"]
    (complaint,) = complaints(frame)
    assert complaint == (
        "The mixers differ in more than the mixer: optimizer (attn muon; mesa adamw), epochs (attn 60; mesa 80)."
    )
    frame["optimizer"], frame["epochs"] = "muon", 60
    (complaint,) = complaints(frame)
    assert "optimizer.betas (attn [0.8, 0.95]; mesa [0.9, 0.95])" in complaint
    frame.loc[frame["mixer"] == "mesa", "status"] = "failed"
    assert complaints(frame) == []  # what has no score is compared with nothing


GPU = {"device": "NVIDIA H200", "precision": "bfloat16"}
CPU = {"device": "cpu", "precision": "float32"}


def test_runs_on_other_devices_or_in_another_precision_are_reported(results):
    """The config of both says `auto`, and so they have one `run_id`."""
    fakes.add_run(results, [0.5, 0.6, 0.7], provenance=GPU)
    fakes.add_run(results, [0.5, 0.6, 0.7], mixer="gdn", provenance=GPU)
    assert complaints(collect(results)) == []
    fakes.add_run(results, [0.5, 0.6, 0.7], mixer="mesa", provenance=CPU)
    (complaint,) = complaints(collect(results))
    assert complaint == (
        "The runs differ in precision (attn bfloat16; gdn bfloat16; mesa float32),"
        " device (attn NVIDIA H200; gdn NVIDIA H200; mesa cpu), which may change scores as well."
    )


def test_seeds_of_one_cell_on_other_devices_are_reported(results):
    fakes.add_run(results, [0.5, 0.6, 0.7], seed=0, provenance=GPU)
    fakes.add_run(results, [0.5, 0.6, 0.7], seed=1, provenance=GPU | {"device": "NVIDIA A100"})
    (complaint,) = complaints(collect(results))
    assert complaint.startswith("The runs differ in device (NVIDIA A100, NVIDIA H200),")  # the same for all mixers


def test_devices_that_part_tasks_and_no_mixers_are_no_complaint(results):
    for mixer in ("attn", "gdn"):
        fakes.add_run(results, [0.5, 0.6, 0.7], mixer=mixer, provenance=GPU)
        fakes.add_run(results, [0.5, 0.6, 0.7], mixer=mixer, task="mem", provenance=CPU)
    failed = fakes.config(mixer="mesa")
    write_config(run_folder(results, run_id(failed)), failed)
    nowhere = failed_record(failed, "out of memory", {"device": "", "precision": None})
    write_record(run_folder(results, run_id(failed)), nowhere)
    assert complaints(collect(results)) == []


def add_class(results, scores, target, **given):
    return fakes.add_run(results, scores, mixer="own", changed={"mixer._target_": target}, **given)


def test_two_classes_under_one_name_are_reported_and_not_taken_for_each_other(results):
    add_class(results, [0.1, 0.2, 0.1], "mixers.own.Own")
    before = collect(results)
    add_class(results, [0.1, 0.9, 0.1], "mixers.own2.Own", seed=[0])
    fakes.add_run(results, [0.1, 0.5, 0.1])
    frame = collect(results)
    assert frame["config"].nunique() == 3 and "mixer._target_" not in before
    assert set(frame["mixer._target_"].dropna()) == {"mixers.own.Own", "mixers.own2.Own"}
    assert complaints(frame) == [
        "mixer own: runs of two classes (mixers.own.Own, mixers.own2.Own) share this name: give each a name"
    ]
    cells = best_per_cell(frame).set_index("mixer")
    assert (cells.loc["own", "configs"], cells.loc["own", "n"], cells.loc["own", "accuracy"]) == (2, 1, 0.9)


def test_classes_are_known_of_runs_that_have_no_record(results):
    add_class(results, [0.1, 0.2, 0.1], "mixers.own.Own")
    lost = fakes.config(mixer="own", changed={"mixer._target_": "mixers.own2.Own"})
    (complaint,) = complaints(collect(results, fakes.configs_in(results) | fakes.by_run_id(lost)))
    assert complaint.startswith("mixer own: runs of two classes")


def test_two_classes_do_not_pass_for_code_that_changed(results):
    add_class(results, [0.1, 0.2, 0.1], "mixers.own.Own", provenance={"code_version": {"mixer": "a"}})
    add_class(results, [0.1, 0.2, 0.1], "mixers.own2.Own", provenance={"code_version": {"mixer": "b"}})
    (complaint,) = complaints(collect(results))
    assert "two classes" in complaint
    add_class(results, [0.1, 0.2, 0.1], "mixers.own2.Own", seed=1, provenance={"code_version": {"mixer": "c"}})
    _, changed = sorted(complaints(collect(results)), key=len, reverse=True)
    assert changed == "mixer own (mixers.own2.Own): its code changed between these runs (2 versions)."


@pytest.mark.parametrize("unfinished", ["attn", "gdn", "mesa"])  # one of them is read last
def test_a_run_that_has_not_ended_hides_no_chance_level(results, unfinished):
    """Only a record says what a guess reaches on a task that is not one of MAD's."""
    runs = {mixer: fakes.config(mixer=mixer, task="state_tracking") for mixer in ("attn", "gdn", "mesa")}
    for mixer, config in runs.items():
        write_config(run_folder(results, run_id(config)), config)
        if mixer != unfinished:
            record = fakes.record(config, [0.5, 0.5, 0.5])
            for row in record.rows:
                row["chance"] = 0.25
            write_record(run_folder(results, run_id(config)), record)
    assert best_per_cell(collect(results))["chance"].tolist() == [0.25] * 3


def test_between_equal_learning_rates_one_inside_the_grid_is_best(results):
    fakes.add_run(results, [0.5, 0.5, 0.5])
    cell = only_cell(results)
    assert (cell["lr"], cell["edge"]) == (1e-3, False)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"there is no folder .*resluts: name a results folder"):
        collect(tmp_path / "resluts")


def test_the_folder_of_the_runs_themselves_is_refused(tmp_path):
    fakes.add_run(tmp_path, [0.5, 0.6, 0.7])
    for look in (collect, report):
        with pytest.raises(ValueError, match=rf"runs holds the runs of a results folder: name that folder, {tmp_path}"):
            look(tmp_path / "runs")
