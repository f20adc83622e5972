"""`hydra/sweeper=optuna`: what it may choose from, six trials on a CPU, failed ones among them, and the same again."""

import csv
from statistics import fmean
from types import SimpleNamespace

import pytest
import yaml
from command_line import TINY, ran, records, refusal
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

import mixerlab.sweeps.launch.search as search_module
from mixerlab.records.best import ended_at_best_rate, score_of
from mixerlab.records.files import RECORD_FILE, run_folder
from mixerlab.records.schema import Record, Score
from mixerlab.sweeps.launch.cells import Cell
from mixerlab.sweeps.launch.search import Search, Tried, distribution

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
        "a=gdn,attn": d.CategoricalDistribution(["gdn", "attn"]),
    }
    assert {text: distribution(parsed(text)[0]) for text in expected} == expected
    for refused in ("a=tag(log,interval(0,1))", "a=tag(log,choice(1,2))", "a=tag(lgo,interval(1e-4,1e-2))"):
        with pytest.raises(ValueError, match="log"):
            distribution(parsed(refused)[0])


def test_optuna_that_is_not_installed_is_said_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(search_module, "find_spec", lambda name: None)
    assert "pip install optuna" in refusal(*SEARCH, LR, f"results_dir={tmp_path / 'results'}")
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_trials_find_the_best_validation_accuracy(tmp_path):
    """One of the two numbers of heads does not divide the width, so some trials fail; mamba has no heads."""
    pytest.importorskip("optuna")
    searched = ("mixer=attn,mamba", "optimizer.lr=tag(log,interval(1e-4,1e-1))", "mixer.num_heads=2,3")
    command = (*SEARCH, *searched, "hydra.sweeper.n_trials=6", "seed=[0,1]", f"results_dir={tmp_path}")
    outcome = ran(*command)
    trials = read_trials(tmp_path)
    assert [int(trial["trial"]) for trial in trials] == list(range(6))
    failed = [trial for trial in trials if trial["error"]]
    assert failed and all((trial["mixer"], trial["mixer.num_heads"]) == ("attn", "3") for trial in failed)
    assert outcome.err.count(" FAILED: ") == len(failed)
    assert all(bool(trial["mixer.num_heads"]) == (trial["mixer"] == "attn") for trial in trials)  # mamba has none
    mixers = [yaml.safe_load(path.read_text())["mixer"] for path in tmp_path.glob("runs/*/config.yaml")]
    assert {mixer["name"] for mixer in mixers} == {"attn", "mamba"}
    assert all(("num_heads" in mixer) == (mixer["name"] == "attn") for mixer in mixers)

    found = records(tmp_path)
    assert {trial["run_id"] for trial in trials} - {""} == set(found)
    for trial in trials:
        if not trial["error"]:
            chosen = ended_at_best_rate(found[trial["run_id"]]["rows"])
            accuracy = fmean(score_of(row, "clean_val_accuracy") for row in chosen)
            assert float(trial["optimizer.lr"]) == chosen[0]["lr"] == float(f"{chosen[0]['lr']:.4g}")
            assert float(trial["clean_val_accuracy"]) == pytest.approx(accuracy)
    best = max(float(trial["clean_val_accuracy"]) for trial in trials if not trial["error"])
    assert f"best of 6 trials ({len(failed)} failed): validation accuracy {best:.4f}" in outcome.out
    assert "tables and figures:" in outcome.out

    before = {identity: record["provenance"]["started_at"] for identity, record in found.items()}
    ran(*command)  # every run is finished: the same trials, nothing trained
    assert read_trials(tmp_path) == trials
    assert {identity: record["provenance"]["started_at"] for identity, record in records(tmp_path).items()} == before


@pytest.mark.parametrize(
    ("values", "score", "expected"),
    [
        ([0.9, 0.6, 0.6], Score(), (0.7, None)),
        ([0.9, None, None], Score(), (0.3, None)),
        ([None, None, None], Score(), (0.0, "no replica finished")),
        ([0.5, 0.3], Score("loss", higher_is_better=False), (0.4, None)),
    ],
)
def test_a_diverged_replica_has_the_worst_score_in_a_search(monkeypatch, tmp_path, values, score, expected):
    rows = [
        {"lr": 0.1, "seed": seed, "status": "diverged" if val is None else "finished", f"clean_val_{score.name}": val}
        for seed, val in enumerate(values)
    ]
    record = Record(run_id="", status="finished", rows=rows, score=score)
    monkeypatch.setattr(search_module, "read_record", lambda folder: record)
    search = Search(None, [])
    assert search.outcome(tmp_path) == (pytest.approx(expected[0]), expected[1])
    worse, better = (search._merit(Tried(None, {}, score=one)) for one in (0.3, 0.7))
    assert (worse < better) == score.higher_is_better


@pytest.mark.parametrize("force", [True, False])
def test_force_trains_a_damaged_run_again(tmp_path, force):
    """As in a grid; without it the record stays as it is, and the trial says so."""
    cell = Cell([], OmegaConf.create(), {}, {}, folder=run_folder(tmp_path, 12 * "0"), cost=1.0)
    cell.folder.mkdir(parents=True)
    (cell.folder / RECORD_FILE).write_text("{")
    trained, one = [], Tried(None, {})

    def train(cells):
        trained.extend(cells)
        return dict.fromkeys(cells, "no matter")

    composer, config = SimpleNamespace(cell=lambda overrides: cell), SimpleNamespace(force=force)
    Search(SimpleNamespace(composer=composer, config=config, train=train), []).train([one])
    end = "no matter" if force else "; force=true trains the run once more"
    assert trained == [cell] * force and one.error.endswith(end)


def read_trials(results_dir):
    (path,) = results_dir.rglob(search_module.TRIALS_FILE)
    return list(csv.DictReader(path.open()))
