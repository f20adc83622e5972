"""Replicas one after another on a GPU: captured in a CUDA graph, with random numbers, and with layers of fla."""

import importlib

import pytest
from stateful_mixers import REFUSED, Dropped, Normed, NormedAndDropped, of
from tiny_training import THREE, VOCAB, assert_same_results, fit, replica_results, splits

from mixerlab.config.project import is_module
from mixerlab.mixers.base import SequenceMixer
from mixerlab.models.language_model import LanguageModel

on_gpu = {"accelerator": "gpu", "precision": "bf16", "epochs": 20}


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", [*REFUSED, Normed, NormedAndDropped])
def test_a_captured_loop_trains_as_one_launched_one_by_one(tmp_path, mixer):
    """Dropout draws the same numbers in both: a graph goes on from its generators' states."""
    plain, captured = (
        fit(THREE, tmp_path / str(graph), data=splits(train=80), build=of(mixer), cuda_graph=graph, **on_gpu)
        for graph in (False, True)
    )
    assert plain.notes == captured.notes
    losses = ["train_loss", "val_loss"]
    assert plain.metrics[losses].equals(captured.metrics[losses])


@pytest.mark.gpu
def test_replicas_in_a_captured_loop_do_not_share_their_random_numbers(tmp_path):
    together = fit(THREE, tmp_path, build=of(Dropped), **on_gpu)
    alone = fit(THREE[2:], tmp_path, build=of(Dropped), **on_gpu)
    assert_same_results(replica_results(together, 2), replica_results(alone, 0), rtol=2e-2)


@pytest.mark.gpu
def test_runs_that_draw_random_numbers_share_graphs(tmp_path):
    given = {"build": of(Dropped), **on_gpu}
    alone = fit([(2e-3, 5), (1e-2, 6)], tmp_path, **given)
    fit([(5e-3, 0), (1e-3, 1)], tmp_path, graph_key="dropped", **given)
    later = fit([(2e-3, 5), (1e-2, 6)], tmp_path, graph_key="dropped", **given)
    assert later.metrics.equals(alone.metrics)


class Wrapped(SequenceMixer):
    """A layer of fla, which returns a tuple with its output in front."""

    def __init__(self, name, **options):
        super().__init__()
        self.layer = getattr(importlib.import_module("fla.layers"), name)(**options)

    def forward(self, x):
        return self.layer(x)[0]


FLA = {
    "GatedLinearAttention": {"hidden_size": 64, "num_heads": 2},
    "RWKV7Attention": {"hidden_size": 64, "head_dim": 32, "layer_idx": 0, "num_hidden_layers": 2},
}


@pytest.fixture
def first_configuration(monkeypatch):
    """Autotuned kernels take the first of their configurations: RWKV7's have hundreds, which take over four minutes."""
    autotuner = importlib.import_module("triton.runtime.autotuner").Autotuner
    monkeypatch.setattr(autotuner, "prune_configs", lambda self, kwargs: self.configs[:1])


@pytest.mark.gpu
@pytest.mark.skipif(not is_module("fla.layers"), reason="needs pip install mixerlab[fla]")
@pytest.mark.parametrize("name", FLA)
@pytest.mark.usefixtures("first_configuration")
def test_a_layer_of_fla_trains(tmp_path, name):
    def build():
        return LanguageModel(VOCAB, 64, n_layers=2, make_mixer=lambda: Wrapped(name, **FLA[name]))

    result = fit(THREE, tmp_path, data=splits(train=80), build=build, **on_gpu | {"epochs": 60})
    assert result.notes[0].startswith("replicas compute one after another")
    losses = result.metrics.query("replica == 0")["train_loss"].tolist()
    assert losses[-1] < 0.7 * losses[0]
