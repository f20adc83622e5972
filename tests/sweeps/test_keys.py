"""Keys that were swept have columns and rows of their own; `--by`, `--where` and `--sweep` choose, for any mixers."""

import json

import fakes
import pytest

from mixerlab.records.archive import pack
from mixerlab.records.named import name_from, name_of, read_sweep, write_sweep
from mixerlab.sweeps.report import report as reports
from mixerlab.sweeps.tables.collect import collect
from mixerlab.sweeps.tables.keys import only_where, short_names, shown, spread_out, swept_keys
from mixerlab.sweeps.tables.sources import read_rows


@pytest.fixture(autouse=True)
def no_drawing(monkeypatch):
    monkeypatch.setattr(reports.canvas, "save", lambda figure, stem, *_: [stem.with_suffix(".png")])


@pytest.fixture
def results(tmp_path):
    """Two mixers of three widths on one task, of two on another; attn also with other heads and another optimizer."""
    for mixer in ("attn", "gdn"):
        for width in (64, 128, 256):
            fakes.add_run(tmp_path, [0.1, width / 400, 0.1], mixer=mixer, changed={"model.d_model": width})
        fakes.add_run(tmp_path, [0.1, 0.9, 0.1], mixer=mixer, task="mem")
    return tmp_path


def header(text):
    return [label.strip() for label in text.splitlines()[3].strip("|").split("|")]


def report(results, **options):
    return reports.report(results, selections=("official",), **options).text


def test_a_swept_key_is_a_column_for_each_value_of_every_mixer(results):
    text = report(results)
    columns = [f"{mixer}, d_model={width}" for mixer in ("attn", "gdn") for width in (64, 128, 256)]
    assert header(text) == ["task", *columns]
    assert "| icr  |            0.160 |             0.320 |             0.640 |" in text
    assert "configurations" not in text and "differ in more" not in text
    gap = "attn, d_model=64; attn, d_model=256; gdn, d_model=64; gdn, d_model=256: missing on mem (baseline)."
    assert f"- {gap}" in text


def test_a_key_of_one_mixer_is_in_its_columns_only(results):
    fakes.add_run(results, [0.1, 0.7, 0.1], mixer="attn", num_heads=4)
    labels = header(report(results, tasks=["icr"]))[1:]
    assert "attn, num_heads=4, d_model=128" in labels and "attn, num_heads=8, d_model=128" in labels
    assert "gdn, d_model=128" in labels


def test_a_key_of_one_layer_names_the_layer():
    keys = ["mixer.options.0.num_heads", "mixer.options.1.num_heads", "mixer.num_heads", "mixer.layers"]
    assert list(short_names(keys).values()) == ["layer 0 num_heads", "layer 1 num_heads", "num_heads", "layers"]


def test_a_key_that_differs_between_tasks_is_not_swept(tmp_path):
    fakes.add_run(tmp_path, [0.1, 0.7, 0.1], changed={"trainer.epochs": 60})
    fakes.add_run(tmp_path, [0.1, 0.7, 0.1], task="mem", changed={"trainer.epochs": 200})
    assert header(report(tmp_path)) == ["task", "attn"]
    fakes.add_run(tmp_path, [0.1, 0.7, 0.1], changed={"trainer.epochs": 200})
    assert header(report(tmp_path)) == ["task", "attn, epochs=60", "attn, epochs=200"]


def test_the_keys_of_two_optimizers_tell_no_more_than_their_names(tmp_path):
    for name, extra in (("muon", {"optimizer.momentum": 0.95}), ("adamw", {"optimizer.eps": 1e-8})):
        fakes.add_run(tmp_path, [0.1, 0.7, 0.1], changed={"optimizer.name": name, **extra})
    assert swept_keys(collect(tmp_path)) == ["optimizer.name"]
    assert header(report(tmp_path)) == ["task", "attn, optimizer=adamw", "attn, optimizer=muon"]


def test_a_value_that_only_looks_like_a_date_is_text(tmp_path):
    fakes.add_run(tmp_path, [0.1, 0.7, 0.1], changed={"optimizer.name": "2020-13-45"})
    assert len(only_where(collect(tmp_path), ["optimizer.name=2020-13-45"])) == 3
    with pytest.raises(ValueError, match="no record has the value 2020-14-45"):
        only_where(collect(tmp_path), ["optimizer.name=2020-14-45"])


def test_a_key_of_the_task_makes_rows(tmp_path):
    for seed in (1, 2):
        fakes.add_run(tmp_path, [0.1, seed / 10, 0.1], data_seed=seed)
    report(tmp_path)
    table = (tmp_path / "report/official/settings.md").read_text()
    assert "| icr  | baseline, data_seed=1 | 0.100 |" in table
    assert "| icr  | baseline, data_seed=2 | 0.200 |" in table and "share this name" not in table


def test_rows_from_a_dataset_on_disk_are_a_setting_of_their_own(tmp_path):
    fakes.add_run(tmp_path, [0.1, 0.7, 0.1])
    fakes.add_run(tmp_path, [0.1, 0.8, 0.1], mixer="gdn")
    fakes.add_run(tmp_path, [0.1, 0.9, 0.1], changed={"task.data_sha256": "0123456789abcdef", "task.data_dir": "d"})
    frame = spread_out(collect(tmp_path)).frame
    assert set(frame["setting"]) == {"baseline", "baseline, data=01234567"}
    text = report(tmp_path)
    assert "| icr  | 0.700 | 0.800 |" in text and "01234567" not in text.splitlines()[5]


@pytest.mark.parametrize("by", [["mixer"], ["model.d_model"], ["task.data_seed"], ["task.data_seed", "model.d_model"]])
def test_runs_on_different_data_never_compete_whatever_by_names(tmp_path, by):
    for seed in (1, 2, 3):
        for width in (64, 128):
            scores = [0.1, seed / 10 + width / 1000, 0.1]
            fakes.add_run(tmp_path, scores, data_seed=seed, changed={"model.d_model": width})
    report(tmp_path, by=by)
    table = (tmp_path / "report/official/settings.md").read_text()
    rows = [line.split("|")[2].strip() for line in table.splitlines()[2:5]]
    assert rows == ["baseline, data_seed=1", "baseline, data_seed=2", "baseline, data_seed=3"]
    last = [entry.split()[0] for entry in table.splitlines()[4].split("|")[3:-1]]
    assert last == (["0.364", "0.428"] if "model.d_model" in by else ["0.428"])
    assert "share this name" not in table and "data_seed (1, 2, 3)" not in table
    hidden = "- attn: its runs differ in model.d_model (64, 128), of which an entry is the best"
    assert (hidden in table) == ("model.d_model" not in by)


def test_two_classes_under_one_name_have_columns_of_their_own(tmp_path):
    for target, score in (("mixers.own.Own", 0.2), ("mixers.own2.Own", 0.9)):
        fakes.add_run(tmp_path, [0.1, score, 0.1], mixer="own", changed={"mixer._target_": target})
    text = report(tmp_path)
    columns = [label.replace("\\", "") for label in header(text)]
    assert columns == ["task", "own, _target_=mixers.own.Own", "own, _target_=mixers.own2.Own"]
    assert "own: runs of two classes (mixers.own.Own, mixers.own2.Own) share this name: give each a name" in text
    assert report(tmp_path / "report/rows.csv", out=tmp_path / "again") == text
    together = report(tmp_path, by=["mixer"]).replace("\\", "")
    assert "- own: its runs differ in mixer._target_ (mixers.own.Own, mixers.own2.Own), of which" in together


def test_null_and_older_records(tmp_path):
    """A key that came later has the value that older records imply; null is a value."""
    fakes.add_run(tmp_path, [0.1, 0.7, 0.1])
    fakes.add_run(tmp_path, [0.1, 0.8, 0.1], changed={"model.linear_std": None}, seed=1)
    assert swept_keys(collect(tmp_path)) == []
    fakes.add_run(tmp_path, [0.1, 0.9, 0.1], changed={"model.linear_std": 0.02})
    text = report(tmp_path)
    assert header(text) == ["task", "attn, linear_std=0.02", "attn, linear_std=null"]
    assert "linear_std=null: model.linear_std is null, or the runs were made before there was this key." in text
    assert "0.900" in report(tmp_path, where=["model.linear_std=2e-2"])
    assert "0.750" in report(tmp_path, where=["model.linear_std=null"])


def test_a_mixer_without_a_swept_key_has_no_note_on_it(tmp_path):
    fakes.add_run(tmp_path, [0.1, 0.7, 0.1])
    fakes.add_run(tmp_path, [0.1, 0.8, 0.1], changed={"mixer.num_heads": 4})
    fakes.add_run(tmp_path, [0.1, 0.9, 0.1], mixer="mamba")
    text = report(tmp_path)
    assert "mamba" in header(text) and "null" not in text


def test_a_value_that_begins_with_null_has_no_note_on_it(tmp_path):
    for score, kind in ((0.7, "nullable"), (0.8, "other")):
        fakes.add_run(tmp_path, [0.1, score, 0.1], changed={"mixer.kind": kind})
    text = report(tmp_path)
    assert header(text) == ["task", "attn, kind=nullable", "attn, kind=other"] and "is null" not in text


def test_by_other_keys(results):
    assert header(report(results, by=["mixer"])) == ["task", "attn", "gdn"]
    text = report(results, by=["optimizer.name"])
    assert header(text) == ["task", "attn, optimizer=muon", "gdn, optimizer=muon"]
    assert "- attn, optimizer=muon: its runs differ in model.d_model (64, 128, 256), of which an entry is" in text
    text = report(results, by=["optimizer.lr"], tasks=["mem"])
    assert header(text)[1:4] == ["attn, lr=0.0005", "attn, lr=0.001", "attn, lr=0.005"]
    assert "Learning rates beyond" not in text  # each column has its own
    with pytest.raises(ValueError, match=r"no record has the key model\.d_modl: there are model\.d_model"):
        report(results, by=["model.d_modl"])


def test_where(results):
    text = report(results, where=["model.d_model=64.0", "optimizer=muon"])
    assert header(text) == ["task", "attn", "gdn"] and "| 0.160 |" in text and "mem" not in text
    rows = (results / "report/rows.csv").read_text()
    assert len(rows.splitlines()) == 1 + 6
    for condition, message in {
        "model.d_model=7": "no record has the value 7; there are 64, 128, 256",
        "model.d_model=64,7,8": "no record has the value 7 or 8; there are 64, 128, 256",
        "model.d_model": "write KEY=VALUE",
        "nope=1": "no record has the key nope",
    }.items():
        with pytest.raises(ValueError, match=message):
            report(results, where=[condition])


def test_where_a_key_has_one_of_several_values(results):
    text = report(results, where=["model.d_model=64,1.28e2", "task.name=icr"])
    widths = [f"{mixer}, d_model={width}" for mixer in ("attn", "gdn") for width in (64, 128)]
    assert header(text) == ["task", *widths]


def test_where_a_comma_is_part_of_the_value(tmp_path):
    for sizes in ({"seq_len": 32}, {"vocab_size": 8}, {"seq_len": 32, "vocab_size": 8}):
        setting = ",".join(f"{key}={value}" for key, value in sizes.items())
        fakes.add_run(tmp_path, [0.1, 0.7, 0.1], setting=setting, **sizes)
    report(tmp_path, where=["task.setting=seq_len=32,vocab_size=8", "optimizer.betas=[0.8,0.95]"])
    assert len((tmp_path / "report/rows.csv").read_text().splitlines()) == 1 + 3
    for also in ("vocab_size=8,seq_len=32", "vocab_size=8, seq_len=32"):  # the same setting, not one of two
        report(tmp_path, where=[f"task.setting={also}"])
        assert set(read_rows(tmp_path / "report/rows.csv")["setting"]) == {"seq_len=32,vocab_size=8"}
    fakes.add_run(tmp_path, [0.1, 0.7, 0.1], setting="frac_noise=0.1", frac_noise=0.1)
    report(tmp_path, where=["task.setting=vocab_size=8,frac_noise=0.1"])  # no setting has both
    assert set(read_rows(tmp_path / "report/rows.csv")["setting"]) == {"vocab_size=8", "frac_noise=0.1"}


def test_a_mixer_that_sees_the_future_is_marked(results):
    fakes.add_run(results, [0.1, 1.0, 0.1], mixer="bidir", changed={"model.may_see_future": True})
    text = report(results, by=["mixer"])
    assert header(text) == ["task", "attn", "gdn", "bidir ‡"]
    assert "| icr  | 0.640 †" in text.replace("0.640 |", "0.640 † |")
    assert "- ‡ May see the tokens that it predicts (model.may_see_future=true)" in text
    assert r"bidir $^{\ddagger}$" in (results / "report/official/accuracy.tex").read_text()
    assert "‡" not in report(results, mixers=["attn"])


def test_a_mixer_that_may_see_the_future_and_does_not_bears_no_mark(tmp_path):
    for mixer, found in (("attn", False), ("bidir", True), ("unknown", None)):
        changed = {"model.may_see_future": True}
        fakes.add_run(tmp_path, [0.1, 1.0, 0.1], mixer=mixer, changed=changed, provenance={"sees_future": found})
    assert header(report(tmp_path)) == ["task", "attn", "bidir ‡", "unknown ‡"]


def test_values_as_yaml_writes_them():
    values = [64, 64.0, 0.1, True, None, float("nan"), "auto", [1, 2], 1e-8]
    texts = ["64", "64", "0.1", "true", "null", "null", "auto", "[1, 2]", "1e-08"]
    assert [shown(value) for value in values] == texts


def test_what_columns_stand_for(results):
    swept = spread_out(collect(results))
    assert swept.keys == ["model.d_model"]
    assert swept.columns["gdn, d_model=64"].mixer == "gdn"
    assert swept.columns["gdn, d_model=64"].values == {"model.d_model": 64}


def test_the_runs_of_one_sweep(results, capsys):
    wide = {"model.d_model": 256}
    runs = fakes.by_run_id(fakes.config(changed=wide), fakes.config(mixer="mesa", changed=wide))
    write_sweep(results, "wide", runs)
    assert reports.main([str(results), "--sweep", "wide", "--selection", "official"]) == 0
    printed = capsys.readouterr().out
    assert header(printed) == ["task", "attn", "mesa"] and "| icr  | 0.640 | missing |" in printed
    assert reports.main([str(results), "--sweep", "nope"]) == 1
    assert "no sweep has this name" in capsys.readouterr().err
    assert reports.main([str(results), "--sweep", "../runs"]) == 1


def test_an_archive_and_rows_hold_no_names_of_sweeps(results, tmp_path, capsys):
    pack(results, tmp_path / "all.tar.xz")
    report(results)
    for source, told in {
        "all.tar.xz": "or unpack it (python -m mixerlab.records.archive FILE --restore) and repeat the sweep's command",
        "report/rows.csv": "name the results folder in place of this file",
    }.items():
        assert reports.main([str(tmp_path / source), "--sweep", "wide"]) == 1
        (message,) = capsys.readouterr().err.splitlines()
        assert f"{tmp_path / source} holds no names of sweeps" in message and told in message
    assert reports.main([str(tmp_path / "nowhere"), "--sweep", "wide"]) == 1
    assert f"there is no folder or file {tmp_path}/nowhere" in capsys.readouterr().err


def test_a_name_that_is_taken_again_adds_its_runs(tmp_path):
    one, other = fakes.by_run_id(fakes.config()), fakes.by_run_id(fakes.config(mixer="gdn"))
    write_sweep(tmp_path, "a", one)
    write_sweep(tmp_path, "a", other)
    assert read_sweep(tmp_path, "a") == one | other
    assert name_of(["1", "2"]) == name_of(["2", "1"]) != name_of(["1"])
    with pytest.raises(ValueError, match=r"sweep='a/b' must be a name"):
        write_sweep(tmp_path, "a/b", one)
    damaged = ("[", "[]", '{"run_ids": ["1"], "cells": []}', '{"runs": []}', '{"runs": {"1": {}}}')
    for content in (*damaged, json.dumps({"runs": {"1": fakes.config()}})):
        (tmp_path / "sweeps/a.json").write_text(content)
        with pytest.raises(ValueError, match="cannot be read"):
            read_sweep(tmp_path, "a")
        with pytest.raises(ValueError, match="cannot be read"):
            write_sweep(tmp_path, "a", one)
        assert (tmp_path / "sweeps/a.json").read_text() == content  # runs that it may name are not forgotten


def test_an_experiment_gives_its_sweep_a_name_that_can_be_read(tmp_path):
    for experiment, name in (("mad_table", "mad_table"), ("mine/wide", "mine-wide"), ("../x y", "x-y")):
        assert name_from(experiment) == name
        write_sweep(tmp_path, name, runs := fakes.by_run_id(fakes.config()))
        assert read_sweep(tmp_path, name) == runs
    assert name_from("_/") == "" and len(name_from("a" * 200)) == 100


def test_a_report_from_rows_and_from_an_archive_is_the_same(results, tmp_path):
    pack(results, tmp_path / "all.tar.xz")
    from_folder = report(results)
    assert report(results / "report/rows.csv", out=tmp_path / "a") == from_folder
    assert report(tmp_path / "all.tar.xz", out=tmp_path / "b") == from_folder
