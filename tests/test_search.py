"""`hydra/sweeper=optuna`: what it may choose from, ten trials on a CPU, failed ones among them, and the same again."""

import csv
from statistics import fmean
from types import SimpleNamespace

import pytest
import yaml
from command_line import TINY, records, run_py
from hydra.core.override_parser.overrides_parser import OverridesParser

import mixerlab
import mixerlab.sweeps.launch.search as search_module
from mixerlab.config.values import is_whole_number
from mixerlab.records.best import ended_at_best_rate, score_of
from mixerlab.records.schema import Record
from mixerlab.sweeps.launch.sweep import Sweep

SEARCH = ("-m", "hydra/sweeper=optuna", "mixer=attn", "task=icr", *TINY, "trainer.epochs=2")


def test_optuna_that_is_not_installed_is_said_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(search_module, "find_spec", lambda name: None)
    outcome = run_py(*SEARCH, "optimizer.lr=interval(1e-3,1e-2)", f"results_dir={tmp_path / 'results'}")
    message = "error: hydra/sweeper=optuna needs a package that is not installed: pip install optuna"
    assert (outcome.code, outcome.err.splitlines()) == (1, [message])
    assert not (tmp_path / "results").exists()


def distribution(text):
    return search_module._distribution(OverridesParser.create().parse_overrides([text])[0])


def test_what_optuna_may_choose_from():
    d = pytest.importorskip("optuna").distributions
    assert distribution("a=interval(0.5,2)") == d.FloatDistribution(0.5, 2)
    assert distribution("a=tag(log,interval(1e-4,1e-2))") == d.FloatDistribution(1e-4, 1e-2, log=True)
    assert distribution("a=int(interval(1,8))") == d.IntDistribution(1, 8)
    assert distribution("a=range(2,9,2)") == d.IntDistribution(2, 8, step=2)
    assert distribution("a=range(0.5,2,0.5)") == d.CategoricalDistribution(["0.5", "1.0", "1.5"])
    assert distribution("a=gdn,attn") == d.CategoricalDistribution(["gdn", "attn"])
    assert distribution("a=choice([1,2],[3])") == d.CategoricalDistribution(["[1,2]", "[3]"])
    with pytest.raises(ValueError, match=r"a=tag\(log,interval\(0,1\)\)"):
        distribution("a=tag(log,interval(0,1))")
    with pytest.raises(ValueError, match="is for an interval"):
        distribution("a=tag(log,choice(1,2))")
    with pytest.raises(ValueError, match=r"the tag lgo says nothing here; write tag\(log,"):
        distribution("a=tag(lgo,interval(1e-4,1e-2))")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["hydra.sweeper.n_trials=0", "optimizer.lr=interval(1e-3,1e-2)"],
            "hydra.sweeper.n_trials=0 must be a whole number of at least 1",
        ),
        (
            ["seed=0,1,2"],
            "seed=0,1,2: a search would choose the luckiest seed; give every run all of them, as in seed=[0,1], to"
            " search for the best mean",
        ),
        (
            ["task.data_seed=range(0,9)", "model.d_model=16,32"],
            "task.data_seed=range(0,9): a search would choose the luckiest seed; give it one value",
        ),
        (
            ["task=mem", "task.map_seed=1,2"],
            "task.map_seed=1,2: a search would choose the luckiest seed; give it one value",
        ),
        (
            ["model.n_layers=interval(1,8)"],
            "model.n_layers=interval(1,8): model.n_layers takes whole numbers only, and an interval has fractions;"
            " write 'model.n_layers=int(interval(1,8))'",
        ),
        (
            ["mixer=mamba,gdn", "mixer.num_heads=interval(1,8)"],
            "mixer.num_heads=interval(1,8): mixer.num_heads takes whole numbers only, and an interval has fractions;"
            " write 'mixer.num_heads=int(interval(1,8))'",
        ),
        (
            ["mixer=attn,gdn", "optimizer.lr=interval(1e-3,1e-2)", "++mixer.num_heads=tag(log,interval(1,4))"],
            "++mixer.num_heads=tag(log,interval(1,4)): mixer.num_heads takes whole numbers only, and an interval has"
            " fractions; write '++mixer.num_heads=int(tag(log,interval(1,4)))'",
        ),
        (
            ["mixer.num_heads=choice(1,1.5,2.0)"],
            "mixer.num_heads=choice(1,1.5,2.0): mixer.num_heads takes whole numbers only, and 1.5 and 2.0 are none",
        ),
        (
            ["mixer=mamba,gdn", "mixer.num_heads=1,1.5"],
            "mixer.num_heads=1,1.5: mixer.num_heads takes whole numbers only, and 1.5 is none",
        ),
        (
            ["model.n_layers=range(1,2,0.5)"],
            "model.n_layers=range(1,2,0.5): model.n_layers takes whole numbers only, and 1.0 and 1.5 are none",
        ),
    ],
)
def test_what_a_search_refuses_before_its_first_trial(tmp_path, given, message):
    pytest.importorskip("optuna")
    outcome = run_py(*SEARCH, *given, f"results_dir={tmp_path / 'results'}")
    assert (outcome.code, outcome.err.splitlines()) == (1, [f"error: {message}"])
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("model.d_model", True),
        ("model.linear_std", False),
        ("trainer.epochs", True),
        ("task.vocab_size", True),
        ("task.test_seq_len", True),  # or null
        ("optimizer.ns_steps", True),
        ("optimizer.lr", False),
        ("schedule.decay", False),
        ("mixer.options.0.num_heads", True),
        ("mixer.options.0.rope_base", False),
        ("mixer.options.0.nope", False),
        ("wait", False),
    ],
)
def test_which_keys_take_whole_numbers_only(key, expected):
    cfg = mixerlab.compose("mixer=hybrid", "mixer.layers=[attn,gdn]", "task=icr")
    assert is_whole_number(cfg, key) == expected


def test_a_search_may_have_several_seeds_in_each_run_and_intervals_of_numbers(tmp_path):
    pytest.importorskip("optuna")
    given = ("seed=[0,1]", "model.n_layers=int(interval(1,3))", "mixer.rope_base=interval(100,10000)", "dry_run=true")
    outcome = run_py(*SEARCH, *given, f"results_dir={tmp_path / 'results'}")
    assert outcome.code == 0, outcome.err
    assert "model.n_layers: IntDistribution(high=3," in outcome.out and "rope_base: FloatDist" in outcome.out


def test_a_search_names_the_keys_that_only_some_mixers_have(tmp_path):
    pytest.importorskip("optuna")
    outcome = run_py(*SEARCH, "mixer=attn,mamba", "mixer.num_heads=1,2", "dry_run=true", f"results_dir={tmp_path}")
    assert outcome.code == 0, outcome.err
    line = "mixer.num_heads applies to attn; without it, as they have no such key, run: mamba"
    assert outcome.out.splitlines()[0] == line
    outcome = run_py(*SEARCH, "mixer=attn,mamba", "mixer.num_hed=1,2", f"results_dir={tmp_path}")
    assert outcome.code == 1 and "unknown key mixer.num_hed" in outcome.err and not records(tmp_path)


@pytest.mark.slow
def test_a_search_leaves_out_a_key_that_a_mixer_does_not_have(tmp_path):
    pytest.importorskip("optuna")
    searched = ("mixer=attn,mamba", "mixer.num_heads=1,2", "hydra.sweeper.n_trials=6")
    outcome = run_py(*SEARCH, *searched, f"results_dir={tmp_path}")
    assert outcome.code == 0 and "(0 failed)" in outcome.out, outcome.err
    assert {trial["mixer"] for trial in read_trials(tmp_path)} == {"attn", "mamba"}
    mixers = [yaml.safe_load(path.read_text())["mixer"] for path in tmp_path.glob("runs/*/config.yaml")]
    assert all(("num_heads" in mixer) == (mixer["name"] == "attn") for mixer in mixers)


def test_a_sweep_over_seeds_is_no_search(tmp_path):
    outcome = run_py("-m", "mixer=attn", "task=icr", *TINY, "seed=0,1", "dry_run=true", f"results_dir={tmp_path}")
    assert outcome.code == 0 and "2 runs, 0 of them finished" in outcome.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((), "has no key to search"),
        (("task.setting=*", "optimizer.lr=interval(1e-3,1e-2)"), "searches one setting of a task"),
        (("optimizer.lr=tag(log,interval(0,1))",), "optimizer.lr=tag(log,interval(0,1))"),
        (("mixer=nope", "optimizer.lr=interval(1e-3,1e-2)"), "mixer/nope"),
    ],
)
def test_what_is_refused(tmp_path, overrides, message):
    pytest.importorskip("optuna")
    outcome = run_py(*SEARCH, *overrides, f"results_dir={tmp_path / 'results'}")
    assert outcome.code == 1 and message in outcome.err and not records(tmp_path / "results")


def test_a_key_with_one_value_is_not_searched():
    """The command makes a choice of one value of each key that not all mixers have (`mixerlab.config.postponed`)."""
    given = {
        "task.seq_len=choice(32)": "task.seq_len=32",
        "mixer.backend=choice('a b')": "mixer.backend=a\\ b",
        "task.seq_len=range(1,2)": "task.seq_len=1",
        "seed=0": "seed=0",
        "optimizer.lr=1e-3,1e-2": None,
        "optimizer.lr=tag(log,interval(1e-4,1e-2))": None,
    }
    parsed = OverridesParser.create().parse_overrides(list(given))
    assert [search_module._fixed(override) for override in parsed] == list(given.values())


@pytest.mark.slow
def test_ten_trials_find_the_best_validation_accuracy(tmp_path):
    """One of the three numbers of heads does not divide the width, so some trials fail; the others go on."""
    pytest.importorskip("optuna")
    searched = ("optimizer.lr=tag(log,interval(1e-4,1e-1))", "mixer.num_heads=1,2,3", "hydra.sweeper.n_trials=10")
    command = (*SEARCH, *searched, "seed=[0,1]", f"results_dir={tmp_path}")
    outcome = run_py(*command)
    assert outcome.code == 0, outcome.err
    trials = read_trials(tmp_path)
    assert len(trials) == 10 and [int(trial["trial"]) for trial in trials] == list(range(10))
    failed = [trial for trial in trials if trial["error"]]
    assert failed and all(trial["mixer.num_heads"] == "3" for trial in failed)
    assert all("does not divide d_model=16" in trial["error"] for trial in failed)
    assert outcome.err.count(" FAILED: ") == len(failed)

    found = records(tmp_path)
    assert {trial["run_id"] for trial in trials} - {""} == set(found)
    for trial in trials:
        if not trial["error"]:
            (lr,) = {row["lr"] for row in found[trial["run_id"]]["rows"]}
            chosen = ended_at_best_rate(found[trial["run_id"]]["rows"])
            accuracy = fmean(score_of(row, "clean_val_accuracy") for row in chosen)
            assert float(trial["optimizer.lr"]) == pytest.approx(lr) and 1e-4 <= lr <= 1e-1
            assert float(trial["clean_val_accuracy"]) == pytest.approx(accuracy)
    best = max(float(trial["clean_val_accuracy"]) for trial in trials if not trial["error"])
    assert f"best of 10 trials ({len(failed)} failed): validation accuracy {best:.4f}" in outcome.out
    assert "tables and figures:" in outcome.out

    before = {identity: record["provenance"]["started_at"] for identity, record in found.items()}
    again = run_py(*command)  # every run is finished: the same trials, nothing trained
    assert again.code == 0 and read_trials(tmp_path) == trials
    assert {identity: record["provenance"]["started_at"] for identity, record in records(tmp_path).items()} == before


BROKEN = """
from mixerlab.mixers.attn import Attention

class Broken(Attention):
    def forward(self, x):
        raise ArithmeticError("never works")
"""


@pytest.mark.slow
def test_a_search_in_which_every_run_fails_says_so(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    (tmp_path / "broken.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    given = ("mixer._target_=broken.Broken", "optimizer.lr=interval(1e-3,1e-2)", "hydra.sweeper.n_trials=3")
    outcome = run_py(*SEARCH, *given, "hydra.sweeper.n_jobs=2", f"results_dir={tmp_path / 'results'}")
    assert outcome.code == 1 and outcome.err.splitlines()[-1] == "error: all 3 trials failed"
    assert outcome.err.count("FAILED: ArithmeticError: never works") == 3


class FakeSweep:
    """Has one cell, and cannot note its runs."""

    def __init__(self, folder):
        self.cell = SimpleNamespace(folder=folder, run_id=folder.name)
        self.config = SimpleNamespace(force=True)
        self.trained = []
        self.composer = SimpleNamespace(cell=lambda overrides: self.cell)

    is_pending = Sweep.is_pending

    def train(self, pending):
        self.trained.append(pending)
        return {}

    def note(self, cells):
        raise OSError(28, "No space left on device")


def test_a_value_that_is_proposed_again_is_not_trained_again(tmp_path, monkeypatch):
    row = {"lr": 0.1, "seed": 0, "status": "finished", "clean_val_accuracy": 0.5}
    monkeypatch.setattr(search_module, "read_record", lambda folder: Record(run_id="", status="finished", rows=[row]))
    sweep = FakeSweep(tmp_path)
    search = search_module.Search(sweep, n_trials=2, n_jobs=1, seed=0)
    batches = [[search_module._Tried(None, {"mixer": "attn"})] for _ in range(2)]
    for batch in batches:
        search._train(batch, [])
    assert sweep.trained == [[sweep.cell], []]  # force=true trains a finished run once
    assert [one.accuracy for (one,) in batches] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("accuracies", "told", "error"),
    [
        ([0.9, 0.6, 0.6], 0.7, None),
        ([0.9, None, None], 0.3, None),
        ([None, None, None], 0.0, "no replica finished, and a diverged one counts as accuracy 0"),
    ],
)
def test_a_diverged_replica_counts_as_0_in_a_search(tmp_path, monkeypatch, accuracies, told, error):
    rows = [
        {"lr": 0.1, "seed": seed, "status": "diverged" if val is None else "finished", "clean_val_accuracy": val}
        for seed, val in enumerate(accuracies)
    ]
    monkeypatch.setattr(search_module, "read_record", lambda folder: Record(run_id="", status="finished", rows=rows))
    batch = [search_module._Tried(None, {"mixer": "attn"})]
    search = search_module.Search(FakeSweep(tmp_path), n_trials=1, n_jobs=1, seed=0)
    search._train(batch, [])
    assert (batch[0].accuracy, batch[0].error) == (pytest.approx(told), error)


def test_a_search_in_which_every_replica_diverges_names_no_best_trial(tmp_path, monkeypatch):
    monkeypatch.setattr(FakeSweep, "note", lambda self, cells: "name")
    monkeypatch.setattr(FakeSweep, "report_on", lambda self, cells, began_at, name: [], raising=False)
    search = search_module.Search(FakeSweep(tmp_path), n_trials=1, n_jobs=1, seed=0)
    tried = search_module._Tried(None, {}, cell=search.sweep.cell, accuracy=0.0, error="no replica finished")
    with pytest.raises(SystemExit, match="error: all 1 trials failed"):
        search._report([tried], 0.0)


def test_a_full_disk_at_the_end_of_a_search_is_one_line(tmp_path):
    search = search_module.Search(FakeSweep(tmp_path), n_trials=1, n_jobs=1, seed=0)
    tried = search_module._Tried(None, {}, cell=search.sweep.cell, accuracy=0.5)
    with pytest.raises(SystemExit) as stopped:
        search._report([tried], 0.0)
    assert stopped.value.code.startswith("error: the trials are trained, but their report cannot be written (")
    assert "No space left on device" in stopped.value.code


def read_trials(results_dir):
    (path,) = results_dir.rglob(search_module.TRIALS_FILE)
    return list(csv.DictReader(path.open()))
