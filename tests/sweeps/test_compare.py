"""Our numbers beside published ones: complete or not, at their learning rates, and what is refused."""

import json

import fakes
import pytest

from mixerlab.api import compose
from mixerlab.config.settings import settings_of
from mixerlab.sweeps.report import compare
from mixerlab.sweeps.tables.collect import collect
from mixerlab.sweeps.tables.published import Pair, distance, pairs_of, read_published, scores_by_seed

SETTINGS = ("baseline", "vocab_size-512", "vocab_size-1024", "vocab_size-2048", "vocab_size-4096", "vocab_size-8192")
MEM = {"task": "mem", "setting": "baseline"}


@pytest.fixture
def results(tmp_path):
    """attn has all of mem, gdn half of it, and one level of the challenge."""
    folder = tmp_path / "results"
    for number, setting in enumerate(SETTINGS):
        fakes.add_run(folder, [0.1, 0.9 - 0.1 * number], lr=[1e-3, 5e-3], task="mem", setting=setting)
        if number < 3:
            fakes.add_run(folder, [0.1, 0.5], lr=[1e-3, 5e-3], mixer="gdn", task="mem", setting=setting)
    fakes.add_run(folder, [0.8], lr=[1e-3], task="icr_challenge", setting="256-512")
    return folder


@pytest.fixture
def published(tmp_path):
    path = tmp_path / "published.json"
    tables = {
        "source": "a paper",
        "over": {"mem": SETTINGS},
        "means": {"columns": ["attn", "gdn", "mesa"], "mem": [0.60, 0.5, 0.7]},
        "settings": {"columns": ["attn", "gdn"], "icr_challenge 256-512": [1.0, None]},
    }
    path.write_text(json.dumps(tables))
    return path


def test_pairs_and_their_distance(results, published, tmp_path):
    pairs = pairs_of(collect(results), read_published(published))
    assert [(pair.name, pair.mixer, pair.published, pair.ours, pair.done, pair.total) for pair in pairs] == [
        ("mem", "attn", 0.6, pytest.approx(0.65), 6, 6),
        ("mem", "gdn", 0.5, pytest.approx(0.5), 3, 6),
        ("mem", "mesa", 0.7, None, 0, 6),
        ("icr_challenge 256-512", "attn", 1.0, 0.8, 1, 1),
    ]
    assert distance(pairs) == (2, pytest.approx(((0.05**2 + 0.2**2) / 2) ** 0.5), None)
    ours, told = [0.1, 0.4, 0.2, 0.9], [0.2, 0.3, 0.4, 0.8]
    ranked = [Pair("means", "mem", "attn", b, a, 1, 1) for a, b in zip(ours, told, strict=True)]
    assert distance(ranked)[2] == pytest.approx(0.8)  # Spearman: 1 - 6 sum d^2 / (n (n^2 - 1)), d = 0, 1, 1, 0
    for number, setting in enumerate((*SETTINGS[:-1], "vocab_size-300")):  # a yaml of one's own has other settings
        fakes.add_run(tmp_path / "own", [0.5 + 0.1 * number], lr=[1e-3], task="mem", setting=setting)
    mem, *_ = pairs_of(collect(tmp_path / "own"), read_published(published))
    assert (mem.done, mem.complete, mem.ours) == (5, False, pytest.approx(0.7))


def test_each_seed_has_its_own_best_rate(tmp_path):
    rates = [1e-3, 5e-3]
    fakes.add_run(tmp_path, [1.0, 0.1, 0.2, 0.9], lr=rates, seed=[0, 1], **MEM)
    fakes.add_run(tmp_path, [0.3], lr=[1e-3], seed=2, **MEM)  # 5e-3 has not been run
    fakes.add_run(tmp_path, ["diverged", 0.5, "diverged", "diverged"], lr=rates, seed=[3, 4], **MEM)
    frame = collect(tmp_path)
    by_seed = {0: 1.0, 1: 0.9, 3: 0.5, 4: 0.0}
    assert scores_by_seed(frame) == scores_by_seed(frame, rates=rates) == {("attn", "mem", "baseline"): by_seed}
    assert scores_by_seed(frame, rates=[*rates, 5e-4]) == {}, "a rate is lacking"
    assert scores_by_seed(frame, rates=[1e-3])["attn", "mem", "baseline"] == {0: 1.0, 1: 0.2, 2: 0.3, 3: 0.0, 4: 0.0}


def test_the_command_writes_table_and_figures(results, published, tmp_path, capsys):
    out = tmp_path / "out"
    assert compare.main([str(results), "--published", str(published), "--out", str(out)]) == 0
    figures = {f"published{of}.{kind}" for of in ("_means", "_settings") for kind in ("png", "pdf")}
    assert {path.name for path in out.iterdir()} == {"published.md", "published.csv"} | figures
    text = (out / "published.md").read_text()
    assert text in capsys.readouterr().out
    assert r"| mem | 0.650 (0.600) +0.050 | 0.500\* (3/6) (0.500) +0.000 | - (0.700) |" in text
    assert "Complete: 1 of 3. RMSE 0.050. Off by more than 0.05: 0." in text  # 0.65 - 0.6 is more in its last bit
    assert (out / "published.csv").read_text().splitlines()[3].startswith("means,mem,mesa,0.7,,0,6")


def test_the_papers_means_are_over_all_settings_of_our_tasks():
    told = read_published(compare.PUBLISHED / "parallax_paper.json")
    assert set(told["over"]) == set(told["means"]) - {"columns"}
    for task, over in told["over"].items():
        assert over == list(settings_of(compose(f"task={task}").task))
