"""From records to one row per replica, with every gap in sight, and what a reader must know of the runs."""

import math

import fakes
import pandas as pd
import pytest

from mixerlab.records.files import RECORD_FILE, read_metrics, run_folder, write_config, write_record
from mixerlab.records.identity import run_id
from mixerlab.records.schema import failed_record
from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.collect import collect, curves, read_rows, rows_of, unpacked
from mixerlab.sweeps.tables.columns import columns_in_order
from mixerlab.sweeps.tables.notes import notes_of
from mixerlab.sweeps.tables.swept import spread_out
from mixerlab.sweeps.tables.tables import task_table
from mixerlab.sweeps.tables.writers import cost_markdown, rows_csv, to_latex


def notes(results, configs=None, by=None):
    return notes_of(spread_out(collect(results, configs), by))


def add_class(results, target, **given):
    return fakes.add_run(results, [0.1, 0.5, 0.1], mixer="own", changed={"mixer._target_": target}, **given)


def test_one_row_per_replica_with_everything_in_it(tmp_path):
    identity = fakes.add_run(tmp_path, [0.5, 0.95, "diverged"], mixer="gdn", setting="seq_len-256")
    frame = collect(tmp_path)
    assert frame["status"].tolist() == ["finished", "finished", "diverged"]
    assert frame["steps_to_90"].tolist() == [math.inf, 3000, math.inf] and frame["config"].nunique() == 1
    expected: dict = {"run_id": identity, "mixer": "gdn", "task": "icr", "setting": "seq_len-256", "replica": 1}
    expected |= {"lr": 1e-3, "seed": 0, "weight_decay": 0.1, "task.seq_len": 256, "mixer.num_heads": 8}
    expected |= {"optimizer.betas": "[0.8, 0.95]", "official_accuracy": 0.95, "num_params": 407_184, "device": "cpu"}
    expected |= {"versions.torch": "2.13.0", "score": "accuracy", "higher_is_better": True}
    assert frame.iloc[1][list(expected)].to_dict() == expected
    assert pd.isna(frame["official_accuracy"].iloc[2])


def test_what_failed_or_never_ended_or_cannot_be_read_is_a_row(tmp_path):
    fakes.add_run(tmp_path, [0.5, 0.6, 0.7])
    failed, killed, gone = fakes.config(mixer="gdn"), fakes.config(mixer="mesa", lr=1e-3), fakes.config(mixer="mamba")
    for config in (failed, killed):
        write_config(run_folder(tmp_path, run_id(config)), config)
    write_record(run_folder(tmp_path, run_id(failed)), failed_record(failed, "CUDA out of memory", {}))
    damaged = fakes.add_run(tmp_path, [0.5, 0.6, 0.7], mixer="parallax")
    for name in ("broken", damaged):
        run_folder(tmp_path, name).mkdir(exist_ok=True)
        (run_folder(tmp_path, name) / "record.json").write_text("{")
    run_folder(tmp_path, "claimed").mkdir()
    frame = collect(tmp_path)
    statuses = frame.groupby("run_id")["status"].agg(list).to_dict()
    assert statuses[run_id(failed)] == ["failed"] * 3 and statuses[run_id(killed)] == ["unfinished"]
    assert statuses["broken"] == ["unreadable"] and statuses[damaged] == ["unreadable"] * 4
    assert "claimed" not in statuses
    lines = [note for note in notes(tmp_path) if note.startswith("unreadable: ")]
    assert len(lines) == 2 and all(str(tmp_path / "runs" / name) in "".join(lines) for name in ("broken", damaged))
    status = {cell.mixer: cell.entry.status for cell in best_per_cell(spread_out(frame)).itertuples()}
    assert status == {"attn": "ok", "parallax": "missing", "gdn": "failed", "mesa": "missing"}
    asked = collect(tmp_path, fakes.by_run_id(fakes.config(), gone))
    assert asked.groupby("mixer")["status"].agg(set).to_dict() == {"attn": {"finished"}, "mamba": {"missing"}}


def test_every_source_gives_the_same_rows(tmp_path):
    """Also of a name such as `NA` or `1e3`, of a hash that is a number too large for a float, and of mixed types."""
    for mixer in ("attn", "NA", "1e3", "1000"):
        fakes.add_run(tmp_path, [0.5, 0.95, "failed"], mixer=mixer, setting="0512", changed={"mixer.gate": None})
    for gate in (True, "auto", "1e3", 1000):
        fakes.add_run(tmp_path, [0.5, 0.95, 0.5], setting="0512", changed={"mixer.gate": gate})
    frame = collect(tmp_path).assign(config="1234e567")
    fakes.pack(tmp_path, tmp_path / "all.tar.xz")
    (tmp_path / "rows.csv").write_text(rows_csv(frame))
    assert rows_of(tmp_path / "all.tar.xz").equals(collect(tmp_path))
    assert collect(tmp_path / "all.tar.xz").equals(collect(tmp_path))
    again = read_rows(tmp_path / "rows.csv")
    assert list(again) == list(frame) and set(again["mixer"]) == {"attn", "NA", "1e3", "1000"}
    text = ["run_id", "mixer", "task", "setting", "optimizer", "status", "config", "score"]
    assert again[text].equals(frame[text])
    tables = [task_table(best_per_cell(spread_out(rows))) for rows in (frame, again)]
    assert tables[0].frame.equals(tables[1].frame) and tables[0].notes == tables[1].notes
    wrong, none = frame.assign(official_accuracy="abc"), frame.drop(columns="official_accuracy")
    other = frame[["mixer", "lr"]]
    for damaged, message in ((wrong, "abc"), (none, "it has no official_accuracy"), (other, "it has no .*score")):
        (tmp_path / "rows.csv").write_text(rows_csv(damaged))
        with pytest.raises(ValueError, match=rf"{tmp_path}/rows.csv cannot be read .*{message}"):
            read_rows(tmp_path / "rows.csv")
    for source in ("none.csv", "nowhere", "none.tar.xz"):
        with pytest.raises(ValueError, match=source):
            rows_of(tmp_path / source)


def test_of_an_archive_only_records_are_read_and_a_damaged_one_is_named(tmp_path):
    results, file = tmp_path / "results", tmp_path / "all.tar.xz"
    run = run_folder(results, fakes.add_run(results, [0.2, 0.5, 0.9]))
    (run / "replica-0.official.safetensors").write_bytes(b"weights")
    fakes.pack(results, file)
    with unpacked(file) as folder:
        names = sorted(path.name for path in folder.rglob("*") if path.is_file())
    assert names == ["config.yaml", "metrics.csv", "record.json"]
    (run / RECORD_FILE).write_text("{")
    fakes.pack(results, file)
    assert collect(file)["error"].dropna().str.startswith(f"{file}/runs/{run.name}/").all()
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match=rf"^{file} cannot be read .*cut short"):
        rows_of(file)


def test_two_classes_under_one_name_are_not_taken_for_each_other(tmp_path):
    add_class(tmp_path, "mixers.own.Own", provenance={"code_version": {"mixer": "a"}})
    assert "mixer._target_" not in collect(tmp_path)
    add_class(tmp_path, "mixers.own2.Own", provenance={"code_version": {"mixer": "b"}})
    fakes.add_run(tmp_path, [0.1, 0.5, 0.1])
    frame = collect(tmp_path)
    assert frame["config"].nunique() == 3 and best_per_cell(spread_out(frame, by=[]))["configs"].tolist() == [1, 2]
    assert not notes(tmp_path)  # not that its code has changed
    add_class(tmp_path, "mixers.own3.Own", task="mem")
    columns = columns_in_order(fakes.frame_of(tmp_path)["column"])
    assert [column.mixer for column in columns] == ["attn", "own", "own", "own"]


def test_the_training_curves_of_runs(tmp_path):
    identity = fakes.add_run(tmp_path, [0.5, 0.95, 0.5])
    other = fakes.add_run(tmp_path, [0.5, 0.6, 0.7], mixer="gdn")
    written = read_metrics(run_folder(tmp_path, identity))
    found = curves(tmp_path, ["mixer=attn"])
    assert list(found["run_id"].unique()) == [identity] and found["lr"].nunique() == 3 and (found["seed"] == 0).all()
    names = ["replica", "epoch", "lr", "train_loss", "test_accuracy"]
    assert found[names].equals(written[names])
    (run_folder(tmp_path, other) / "metrics.csv").write_text("")
    assert other in curves(tmp_path).attrs["notes"][0] and set(curves(tmp_path)["mixer"]) == {"attn"}
    with pytest.raises(ValueError, match=f"no training curves; unreadable: {tmp_path}/runs/{other}"):
        curves(tmp_path, ["mixer=gdn"])


def test_what_runs_took(tmp_path):
    fakes.add_run(tmp_path, [0.5, 0.6, 0.7])
    assert cost_markdown(fakes.frame_of(tmp_path)) is None
    for seed, seconds in ((1, 60.0), (2, 120.0)):
        told = {"training_s": seconds, "tokens_per_s": 1e5 / seed, "peak_memory_mb": 2345.6, "device": "H100"}
        fakes.add_run(tmp_path, [0.5, 0.6, 0.7], mixer="gdn", seed=seed, provenance=told)
    fakes.add_run(tmp_path, [0.5, 0.6, 0.7], mixer="attn", task="ncr", provenance=told)
    fakes.add_run(tmp_path, [0.5, 0.6, 0.7], mixer="mamba", provenance=told)
    *_, first, second, third = cost_markdown(fakes.frame_of(tmp_path)).splitlines()
    cells = [cell.strip() for cell in first.split("|")[1:-1]]
    assert cells == ["icr", "baseline", "gdn", "H100", "3", "407,184", "90 s", "75,000", "2,346 MB"]
    assert second.startswith("| icr  | baseline | mamba") and third.startswith("| ncr  | baseline | attn")


def test_what_sees_the_future_is_told_also_where_all_mixers_may_and_is_not_bold(tmp_path):
    """It has a mark, which LaTeX shows too, and lets what is worse be bold."""
    changed, seeds = {"model.may_see_future": True}, {"lr": 1e-3, "seed": [0, 1]}
    for mixer, score, sees in (("attn", 0.5, False), ("gdn", 0.9, True), ("mamba", 0.3, False)):
        told = {"sees_future": sees}
        fakes.add_run(tmp_path, [score, score], mixer=mixer, changed=changed, provenance=told, **seeds)
    (note,) = notes(tmp_path)
    assert "sees the future" in note and note.endswith(": gdn.")
    latex = to_latex(task_table(fakes.cells_of(tmp_path)))
    assert r"\textbf{0.500}" in latex and r"0.900\textsubscript{$\pm$0.000}\textsuperscript{*}" in latex


def test_grids_of_other_sizes_are_told(tmp_path):
    for mixer, grids in (("attn", (3, 2)), ("gdn", (3, 3))):
        for task, rates in zip(("icr", "mem"), grids, strict=True):
            fakes.add_run(tmp_path, [0.5] * rates, mixer=mixer, task=task, lr=[5e-3, 1e-3, 5e-4][:rates])
    (note,) = notes(tmp_path)
    assert note == "The mixers differ in more than the mixer: learning rates tried (2 to 3: attn; 3: gdn)."


def test_grids_of_other_sizes_are_told_of_one_mixers_options(tmp_path):
    for width, rates in ((64, 1), (128, 3)):
        changed = {"model.d_model": width}
        fakes.add_run(tmp_path, [0.5] * rates, lr=[5e-3, 1e-3, 5e-4][:rates], changed=changed)
    (note,) = notes(tmp_path)
    assert 'learning rates tried (3: "attn, d_model=128"; 1: "attn, d_model=64")' in note


def test_a_rate_at_which_a_mixer_diverged_was_tried(tmp_path):
    for mixer, score in (("attn", 0.5), ("gdn", "diverged")):
        fakes.add_run(tmp_path, [score, 0.6, 0.5], mixer=mixer)
    assert notes_of(fakes.frame_of(tmp_path)) == []


@pytest.mark.parametrize(("key", "value", "shown"), [("num_test_examples", 64, "64"), ("data_sha256", "a1" * 32, "a1")])
def test_other_data_are_other_rows(tmp_path, key, value, shown):
    """Also where a mixer has what the task's yaml leaves open."""
    for mixer, own in (("attn", value), ("gdn", None)):
        fakes.add_run(tmp_path, [0.1, 0.5, 0.1], mixer=mixer, changed={f"task.{key}": own})
    frame = fakes.frame_of(tmp_path)
    settings = frame.groupby("mixer")["setting"].first()
    assert f"={shown}" in settings["attn"] and shown not in settings["gdn"]


@pytest.mark.parametrize(
    ("place", "key", "of_attn", "of_gdn", "told"),
    [
        ("changed", "trainer.eval_every", 50, None, "50: attn; null: gdn"),  # more checkpoints to choose from
        ("changed", "model.may_see_future", True, False, "true: attn; false: gdn"),
        ("provenance", "threads", 1, 4, "1: attn; 4: gdn"),  # on which numbers depend
    ],
)
def test_what_mixers_do_not_share_is_told(tmp_path, place, key, of_attn, of_gdn, told):
    for mixer, value in (("attn", of_attn), ("gdn", of_gdn)):
        fakes.add_run(tmp_path, [0.1, 0.5, 0.1], mixer=mixer, **{place: {key: value}})
    assert notes(tmp_path) == [f"The mixers differ in more than the mixer: {key} ({told})."]


def test_mixers_are_compared_task_by_task(tmp_path):
    """A mixer that is on one task of two, with sizes of their own, differs from no other one."""
    changed = {"trainer.batch_size": 32, "trainer.epochs": 1}
    for mixer, task in (("attn", "icr"), ("gdn", "icr"), ("attn", "ncr")):
        fakes.add_run(tmp_path, [0.1, 0.5, 0.1], mixer=mixer, task=task, changed=changed if task == "ncr" else {})
    fakes.add_run(tmp_path, [0.5], mixer="gdn", task="mem", lr=1e-3)
    assert notes(tmp_path) == []
    fakes.add_run(tmp_path, [0.1, 0.5, 0.1], mixer="gdn", task="ncr", changed=changed | {"trainer.epochs": 2})
    assert notes(tmp_path, by=[]) == ["The mixers differ in more than the mixer: epochs (1, 60: attn; 2, 60: gdn)."]
