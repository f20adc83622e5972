"""What is committed in results/ is what `results/remake.py` makes of the committed records."""

import re
import shutil
from importlib import import_module
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import ROOT

import mixerlab
from mixerlab.config.values import checked
from mixerlab.records.identity import run_id
from mixerlab.sweeps.tables.collect import rows_of

RESULTS = ROOT / "results"
MAKERS = sorted(path.stem for path in RESULTS.glob("makers/*.py") if path.stem != "common")
ROWS = {"parity": "rows.csv", "screen": "effects.csv", "table": "rows.csv"}  # which are made too
FAST = ("parity", "anchor")


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of results/, on which the makers work."""
    monkeypatch.syspath_prepend(RESULTS)
    shutil.copytree(RESULTS, tmp_path / "results", ignore=shutil.ignore_patterns("runs", "report"))
    monkeypatch.setattr(import_module("makers.common"), "RESULTS", tmp_path / "results")
    return tmp_path / "results"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in MAKERS]
)
def test_committed_tables_come_from_the_records(copied, tmp_path, name):
    files = [path.relative_to(RESULTS) for path in (RESULTS / name).rglob("*.md")]
    files += [Path(name, ROWS[name])] if name in ROWS else []
    for file in files:
        if file.name == "README.md":  # the author's, but for the tables
            page = copied / file
            page.write_text(re.sub(r"(<!-- .* -->\n)(\|.*\n)+", r"\1", page.read_text()))
        else:
            (copied / file).unlink()
    import_module(f"makers.{name}").make(copied / name, tmp_path / "scratch")
    for file in files:
        assert (copied / file).read_text() == (RESULTS / file).read_text(), file


@pytest.mark.slow
def test_whether_mad_predicts_text(copied, tmp_path):
    """Of drawn rows in which icr has the order of the text's records, sc the opposite one, and ncr none."""
    text = import_module("makers.text")
    models = text.at_better_rate(text.plain_runs(rows_of(copied / "text" / "records.tar.xz")))
    bits = models[models["optimizer"] == "muon"].groupby("mixer")["clean_bits_per_byte"].mean()
    rows = [
        {"mixer": mixer, "task": task, "setting": "baseline", "seed": seed, "lr": lr, "optimizer": "muon"}
        | {"clean_accuracy": 0.5 + sign * (1.3 - value), "steps_to_90": 1.0, "status": "finished"}
        for (mixer, value), (task, sign), seed in product(bits.items(), (("icr", 2), ("sc", -1), ("ncr", 0)), range(3))
        for lr in import_module("makers.common").MUON_RATES
    ]
    more = {"mixer.ungated": None, "mixer.allow_neg_eigval": False}
    frame = pd.DataFrame(rows).assign(**more, clean_val_accuracy=0.5, official_accuracy=0.5)
    negative = frame[frame["mixer"] == "gdn"].assign(**{"mixer.allow_neg_eigval": True, "clean_accuracy": 0.99})
    pd.concat([frame, negative]).to_csv(copied / "map" / "rows.csv.xz", index=False)
    import_module("makers.prediction").make(copied / "prediction", tmp_path)
    lines = [line.split("|") for line in (copied / "prediction" / "README.md").open() if line.startswith("|")]
    found = {line[1].strip(): line[2].strip() for line in lines}
    chosen = ("mean of the baselines", "icr", "sc")
    assert [found[name].split()[0] for name in chosen] == ["+1.00", "+1.00", "-1.00"]
    low, high = found["icr"].split("(")[1].strip(")").split(" to ")
    assert 0 < float(low) <= float(high) <= 1
    assert found["ncr"] == "all alike"


@pytest.mark.slow
def test_a_bootstrap_with_draws_that_have_no_correlation_gives_no_interval(copied):
    """Of one mixer that is weak and eleven alike: some draws are without the weak one."""
    correlation = import_module("makers.prediction").correlation
    bits = [np.array([2.0 - 0.1 * mixer]) for mixer in range(12)]
    assert "(" not in correlation([np.array([0.5]), *[np.array([1.0])] * 11], bits)
    assert "(" in correlation([np.array([0.08 * mixer]) for mixer in range(12)], bits)


@pytest.mark.parametrize(("cmp", "verdict"), [(-1.0, "mixed"), (0.0, "holds")])
def test_a_claim_is_mixed_if_a_task_has_the_other_sign(copied, cmp, verdict):
    """Of COR by layer: on icr it grows by 3 and on cmp by `cmp`, with a little noise over seeds."""
    noise = (-0.01, 0.0, 0.01)
    lines = [
        (task, seed, layer, layer * (growth + noise[seed]))
        for (task, growth), seed, layer in product((("icr", 3.0), ("cmp", cmp)), range(3), (1, 2))
    ]
    run = {"mixer": "parallax", "variant": "muon, wsd", "measure": "cor", "epochs": 60, "study": "optimizers"}
    rows = pd.DataFrame(lines, columns=["task", "seed", "layer", "mean"]).assign(**run)
    table = import_module("makers.analysis").claims_table(rows)
    assert table.loc["COR grows with depth (muon, wsd)", "verdict"] == verdict


def test_pairs_of_task_and_seed_are_those_that_all_sides_have(copied):
    def side(mixer, seeds):
        cells = [{"mixer": mixer, "seed": seed, "lr": 1e-3} for seed in seeds]
        score = {"official_accuracy": 0.95, "steps_to_90": 100.0}
        return pd.DataFrame(cells).assign(task="icr_challenge", setting="1024-2048", status="finished", **score)

    sides = {"attn": side("attn", range(3)), "Parallax": side("parallax", range(2))}
    table = import_module("makers.challenge").levels_table(sides)
    assert table.loc["recall at 2,048", "task and seed"].tolist() == ["2 of 2", "2 of 2"]


def test_a_replica_counts_once():
    rows = rows_of(RESULTS / "table" / "rows.csv")
    assert not rows.duplicated(["mixer", "task", "setting", "lr", "seed"]).any()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mixer", ["attn", "parallax", "gdn", "mamba", "mesa"])
@pytest.mark.parametrize(
    ("source", "task", "setting"),
    [
        ("table/rows.csv", "mem", "vocab_size-1024"),
        pytest.param("challenge/records.tar.xz", "sc_challenge", "128-512", marks=pytest.mark.slow),
    ],
)
def test_the_records_are_of_the_default_recipe(mixer, source, task, setting):
    """So a sweep over restored records trains only what is not there."""
    rows = rows_of(RESULTS / source)
    runs = rows[(rows["mixer"] == mixer) & (rows["task"] == task) & (rows["setting"] == setting)]
    assert runs["run_id"].nunique() > 0
    for identity, run in runs.groupby("run_id"):
        rates, seeds = (list(dict.fromkeys(run[column].tolist())) for column in ("lr", "seed"))
        place = f"mixer={mixer}", f"task={task}", f"task.setting={setting}"
        config = mixerlab.compose(*place, f"optimizer.lr={rates}", f"seed={seeds}")
        assert run_id(checked(config)[1]) == identity
