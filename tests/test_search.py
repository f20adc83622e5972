"""`hydra/sweeper=optuna`: what it may choose from, ten trials on a CPU, failed ones among them, and the same again."""

import csv
from statistics import fmean
from types import SimpleNamespace

import pytest
import yaml
from command_line import TINY, records, run_py
from hydra.core.override_parser.overrides_parser import OverridesParser
from trainers import FakeCell

import mixerlab
import mixerlab.sweeps.launch.search as search_module
from mixerlab.config.values import is_whole_number
from mixerlab.records.best import ended_at_best_rate, score_of
from mixerlab.records.schema import Record, Score
from mixerlab.sweeps.launch.search import Search, Tried
from mixerlab.sweeps.launch.space import distribution, split
from mixerlab.sweeps.launch.sweep import Sweep

SEARCH = ("-m", "hydra/sweeper=optuna", "mixer=attn", "task=icr", *TINY, "trainer.epochs=2")
LR = "optimizer.lr=interval(1e-3,1e-2)"


def parsed(*texts):
    return OverridesParser.create().parse_overrides(list(texts))


def test_what_optuna_may_choose_from():
    d = pytest.importorskip("optuna").distributions
    expected = {
        "a=interval(0.5,2)": d.FloatDistribution(0.5, 2),
        "a=tag(log,interval(1e-4,1e-2))": d.FloatDistribution(1e-4, 1e-2, log=True),
        "a=int(interval(1,8))": d.IntDistribution(1, 8),
        "a=range(2,9,2)": d.IntDistribution(2, 8, step=2),
        "a=range(0.5,2,0.5)": d.CategoricalDistribution(["0.5", "1.0", "1.5"]),
        "a=gdn,attn": d.CategoricalDistribution(["gdn", "attn"]),
        "a=choice([1,2],[3])": d.CategoricalDistribution(["[1,2]", "[3]"]),
    }
    assert {text: distribution(parsed(text)[0], []) for text in expected} == expected
    for refused in ("a=tag(log,interval(0,1))", "a=tag(log,choice(1,2))", "a=tag(lgo,interval(1e-4,1e-2))"):
        with pytest.raises(ValueError, match="log"):
            distribution(parsed(refused)[0], [])


def test_a_key_with_one_value_is_not_searched():
    """The command makes a choice of one value of each key that not all mixers have (`mixerlab.config.postponed`)."""
    single = {
        "task.seq_len=choice(32)": "task.seq_len=32",
        "mixer.backend=choice('a b')": "mixer.backend=a\\ b",
        "task.seq_len=range(1,2)": "task.seq_len=1",
        "seed=0": "seed=0",
    }
    fixed, searched = split(parsed(*single, "optimizer.lr=1e-3,1e-2", "model.n_layers=int(interval(1,8))"))
    assert fixed == list(single.values())
    assert [override.key_or_group for override in searched] == ["optimizer.lr", "model.n_layers"]


@pytest.mark.parametrize(
    ("overrides", "fix"),
    [
        (["hydra.sweeper.n_trials=0", LR], "hydra.sweeper.n_trials=0 must be a whole number of at least 1"),
        ([], "has no key to search"),
        (["task.setting=*", LR], "one setting of a task"),
        (["seed=0,1,2"], "seed=[0,1]"),
        (["task.data_seed=range(0,9)", "model.d_model=16,32"], "luckiest seed"),
        (["model.n_layers=interval(1,8)"], "int(interval("),
        (["mixer=mamba,gdn", "mixer.num_heads=interval(1,8)"], "mixer.num_heads takes whole numbers only"),
        (["mixer.num_heads=choice(1,1.5,2.0)"], "whole numbers only, not 1.5, 2.0"),
        (["mixer.num_heads=choice('1.5',true)"], "whole numbers only, not 1.5, True"),
        (["model.n_layers=range(1,2,0.5)"], "whole numbers only"),
        (["mixer=attn,mamba", "mixer.num_hed=1,2"], "unknown key mixer.num_hed"),
        (["mixer=nope", LR], "mixer/nope"),
    ],
)
def test_what_a_search_refuses_before_its_first_trial(tmp_path, overrides, fix):
    pytest.importorskip("optuna")
    outcome = run_py(*SEARCH, *overrides, f"results_dir={tmp_path / 'results'}")
    assert outcome.code == 1 and fix in outcome.err and len(outcome.err.splitlines()) == 1
    assert not (tmp_path / "results").exists()


def test_optuna_that_is_not_installed_is_said_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(search_module, "find_spec", lambda name: None)
    outcome = run_py(*SEARCH, LR, f"results_dir={tmp_path / 'results'}")
    assert outcome.code == 1 and "pip install optuna" in outcome.err and not (tmp_path / "results").exists()


def test_which_keys_take_whole_numbers_only():
    cfg = mixerlab.compose("mixer=hybrid", "mixer.layers=[attn,gdn]", "task=icr")
    whole = ["model.d_model", "trainer.epochs", "task.test_seq_len", "optimizer.ns_steps", "mixer.options.0.num_heads"]
    others = ["model.linear_std", "optimizer.lr", "schedule.decay", "mixer.options.0.rope_base", "wait"]
    assert [is_whole_number(cfg, key) for key in [*whole, *others]] == [True] * len(whole) + [False] * len(others)


def test_a_dry_run_says_what_a_search_has(tmp_path):
    pytest.importorskip("optuna")
    space = ("mixer=attn,mamba", "seed=[0,1]", "mixer.num_heads=1,2", "model.n_layers=int(interval(1,3))")
    outcome = run_py(*SEARCH, *space, "dry_run=true", f"results_dir={tmp_path / 'results'}")
    assert outcome.code == 0, outcome.err
    first, *lines = outcome.out.splitlines()
    assert first.startswith("mixer.num_heads applies to attn;") and first.endswith("run: mamba")
    assert [line.split(":")[0] for line in lines] == ["mixer", "mixer.num_heads", "model.n_layers", "20 trials"]


@pytest.mark.slow
def test_ten_trials_find_the_best_validation_accuracy(tmp_path):
    """One of the three numbers of heads does not divide the width, so some trials fail; mamba has no heads."""
    pytest.importorskip("optuna")
    searched = ("mixer=attn,mamba", "optimizer.lr=tag(log,interval(1e-4,1e-1))", "mixer.num_heads=1,2,3")
    command = (*SEARCH, *searched, "hydra.sweeper.n_trials=10", "seed=[0,1]", f"results_dir={tmp_path}")
    outcome = run_py(*command)
    assert outcome.code == 0, outcome.err
    trials = read_trials(tmp_path)
    assert [int(trial["trial"]) for trial in trials] == list(range(10))
    failed = [trial for trial in trials if trial["error"]]
    assert failed and all((trial["mixer"], trial["mixer.num_heads"]) == ("attn", "3") for trial in failed)
    assert outcome.err.count(" FAILED: ") == len(failed)
    mixers = [yaml.safe_load(path.read_text())["mixer"] for path in tmp_path.glob("runs/*/config.yaml")]
    assert {mixer["name"] for mixer in mixers} == {"attn", "mamba"}
    assert all(("num_heads" in mixer) == (mixer["name"] == "attn") for mixer in mixers)

    found = records(tmp_path)
    assert {trial["run_id"] for trial in trials} - {""} == set(found)
    for trial in trials:
        if not trial["error"]:
            chosen = ended_at_best_rate(found[trial["run_id"]]["rows"])
            accuracy = fmean(score_of(row, "clean_val_accuracy") for row in chosen)
            assert float(trial["optimizer.lr"]) == pytest.approx(chosen[0]["lr"])
            assert float(trial["clean_val_accuracy"]) == pytest.approx(accuracy)
    best = max(float(trial["clean_val_accuracy"]) for trial in trials if not trial["error"])
    assert f"best of 10 trials ({len(failed)} failed): validation accuracy {best:.4f}" in outcome.out
    assert "tables and figures:" in outcome.out

    before = {identity: record["provenance"]["started_at"] for identity, record in found.items()}
    again = run_py(*command)  # every run is finished: the same trials, nothing trained
    assert again.code == 0 and read_trials(tmp_path) == trials
    assert {identity: record["provenance"]["started_at"] for identity, record in records(tmp_path).items()} == before


class FakeSweep:
    """Has one cell."""

    def __init__(self, folder):
        self.cell = FakeCell(folder=folder, run_id=folder.name)
        self.config = SimpleNamespace(force=True)
        self.trained = []
        self.composer = SimpleNamespace(cell=lambda overrides: self.cell)

    is_pending = Sweep.is_pending

    def train(self, pending):
        self.trained.append(pending)
        return {}

    def note(self, cells):
        return "name"

    def report_on(self, cells, name):
        return []


def searched(tmp_path, monkeypatch, rows, score=None):
    """A search with one trial whose run has these rows, and what it made of it."""
    record = Record(run_id="", status="finished", rows=rows, score=score or Score())
    monkeypatch.setattr(search_module, "read_record", lambda folder: record)
    search, tried = Search(FakeSweep(tmp_path), n_trials=1), Tried(None, {"mixer": "attn"})
    search.train([tried], [])
    return search, tried


def test_a_value_that_is_proposed_again_is_not_trained_again(tmp_path, monkeypatch):
    row = {"lr": 0.1, "seed": 0, "status": "finished", "clean_val_accuracy": 0.5}
    search, _ = searched(tmp_path, monkeypatch, [row])
    again = Tried(None, {"mixer": "attn"})
    search.train([again], [])
    assert search.sweep.trained == [[search.sweep.cell], []]  # force=true trains a finished run once
    assert again.score == 0.5


@pytest.mark.parametrize(
    ("accuracies", "score", "error"),
    [
        ([0.9, 0.6, 0.6], 0.7, None),
        ([0.9, None, None], 0.3, None),
        ([None, None, None], 0.0, "no replica finished"),
    ],
)
def test_a_diverged_replica_counts_as_0_in_a_search(tmp_path, monkeypatch, accuracies, score, error):
    rows = [
        {"lr": 0.1, "seed": seed, "status": "diverged" if val is None else "finished", "clean_val_accuracy": val}
        for seed, val in enumerate(accuracies)
    ]
    search, tried = searched(tmp_path, monkeypatch, rows)
    assert (tried.score, tried.error) == (pytest.approx(score), error)
    if error:
        with pytest.raises(SystemExit, match="error: all 1 trials failed"):
            search.report([tried])


def test_a_score_of_which_less_is_better_is_minimised(tmp_path, monkeypatch, capsys):
    row = {"lr": 0.1, "seed": 0, "status": "finished", "clean_val_loss": 0.5}
    search, tried = searched(tmp_path, monkeypatch, [row], Score("loss", higher_is_better=False))
    worse = Tried(None, {"mixer": "gdn"}, cell=tried.cell, score=0.7)
    search.report([worse, tried])
    assert "validation loss 0.5000 with mixer=attn" in capsys.readouterr().out


def read_trials(results_dir):
    (path,) = results_dir.rglob(search_module.TRIALS_FILE)
    return list(csv.DictReader(path.open()))
