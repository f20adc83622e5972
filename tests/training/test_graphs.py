"""Captured steps give what launched ones give.

Where there is no GPU, `on_a_cpu` puts the functions in the place of the graphs that would be captured of them.
"""

import gc
import importlib
import weakref
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from every_mixer import MIXERS, mixer_of
from stateful_mixers import REFUSED, Dropped, Normed, NormedAndDropped, model_with
from tiny_training import LENGTH, THREE, VOCAB, assert_same_results, equal, fit, replica_results, splits

from mixerlab.mixers.wrapped import Wrapped
from mixerlab.models.auto_encoder import AutoEncoder
from mixerlab.models.language_model import LanguageModel
from mixerlab.training import capture, datamodule, lit_module
from mixerlab.training import fit as story
from mixerlab.training.capture import Captured, SharedMemory
from mixerlab.training.lit_module import PopulationTraining
from mixerlab.training.optimizers import AdamW
from mixerlab.training.torch_optimizer import TorchOptimizer

WIDTH = 64
TWO = [(5e-3, 0), (1e-3, 1)]
on_gpu = {"accelerator": "gpu", "precision": "bf16", "epochs": 5}


@pytest.fixture
def on_a_cpu(monkeypatch):
    """Replaces a graph by its function; the names of these so far."""
    names = []

    class StandIn:
        def __init__(self, function, written, example, memory, generators, ahead):
            names.append(function.__name__)
            before = [tensor.detach().clone() for tensor in written]
            function(example)  # warms up, as a graph does
            for tensor, value in zip(written, before, strict=True):
                tensor.data.copy_(value)
            self.function = function

        def __call__(self, argument):
            return self.function(argument)

    def capturing(*arguments, **options):
        return PopulationTraining(*arguments, **options | {"captures": True})

    monkeypatch.setattr(capture, "Captured", StandIn)
    monkeypatch.setattr(lit_module, "SharedMemory", object)
    monkeypatch.setattr(story, "PopulationTraining", capturing)
    return names


def language_model(mixer="attn"):
    return LanguageModel(VOCAB, WIDTH, n_layers=2, make_mixer=lambda: mixer_of(mixer, WIDTH))


def test_a_training_captures_its_steps_once_for_each_number_of_replicas(tmp_path, on_a_cpu):
    replicas = [(1e30, 0), (1e-3, 1), (1e-2, 2)]  # of which one diverges
    settings = {"data": splits(train=33), "epochs": 5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(story, "PopulationTraining", PopulationTraining)
        launched = fit(replicas, tmp_path, **settings)
    assert on_a_cpu == []
    assert equal(fit(replicas, tmp_path, **settings), launched) and launched.notes == []
    assert on_a_cpu == ["train", "score"] * 2


def test_an_optimizer_that_is_not_captured_steps_after_a_captured_backward(tmp_path, on_a_cpu):
    settings = {"optimizer": TorchOptimizer, "data": splits(train=33), "folder": tmp_path, "epochs": 2}
    adam = partial(torch.optim.AdamW, weight_decay=0.1, betas=(0.9, 0.95))
    theirs = fit(TWO, options={"all": adam}, **settings)
    assert on_a_cpu == ["backward", "score"] and theirs.notes == []
    ours = fit(TWO, **settings | {"optimizer": AdamW})
    for replica in range(2):
        assert_same_results(replica_results(theirs, replica), replica_results(ours, replica))


def test_the_examples_of_a_run_are_freed_when_it_ends(tmp_path, monkeypatch):
    """Freed later, by the garbage collector, they would make the next run's `peak_memory` too small."""
    examples, setup = [], datamodule.PopulationData.setup

    def noted(self, stage):
        setup(self, stage)
        examples.append(weakref.ref(self.examples.inputs))

    monkeypatch.setattr(datamodule.PopulationData, "setup", noted)
    gc.disable()
    try:
        fit(TWO, tmp_path, epochs=1)
        assert [held() for held in examples] == [None]
    finally:
        gc.enable()


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", MIXERS)
def test_captured_and_launched_steps_give_the_same_curves(tmp_path, mixer):
    settings = {"data": splits(train=80), "build": partial(language_model, mixer), **on_gpu | {"epochs": 40}}
    plain, graphs = (fit(TWO, tmp_path / str(graph), cuda_graph=graph, **settings) for graph in (False, True))
    assert plain.notes == graphs.notes and all(" is compiled: " in note for note in graphs.notes)
    for column in ("train_loss", "val_loss"):
        losses = [torch.from_numpy(result.metrics[column].to_numpy()) for result in (plain, graphs)]
        torch.testing.assert_close(*losses, rtol=2e-2, atol=2e-3)


@pytest.mark.gpu
def test_a_captured_auto_encoder_trains_as_a_launched_one_and_so_do_fewer_replicas(tmp_path):
    """Graphs are captured anew when a replica has left, and a run that is repeated gives the same bits."""

    def build():
        return AutoEncoder(VOCAB, LENGTH, WIDTH, n_layers=2, make_mixer=lambda: mixer_of("attn", WIDTH))

    replicas = [(1e30, 0), (1e-3, 1), (1e-2, 2)]
    for model in (build, language_model):
        settings = {"build": model, **on_gpu}
        one, again = (fit(replicas, tmp_path, **settings) for _ in range(2))
        assert equal(one, again) and one.notes == again.notes == []
        plain = fit(replicas, tmp_path, cuda_graph=False, **settings)
        losses = [torch.from_numpy(result.metrics["train_loss"].to_numpy()) for result in (plain, one)]
        torch.testing.assert_close(*losses, rtol=2e-2, atol=2e-3, equal_nan=True)


@pytest.mark.gpu
def test_a_forgotten_graph_is_not_destroyed_while_another_is_captured():
    """That would make the capture invalid."""
    forgotten = [torch.cuda.CUDAGraph()]
    with torch.cuda.graph(forgotten[0]):
        torch.zeros((), device="cuda")

    def plus_one(x):
        if torch.cuda.is_current_stream_capturing():
            cycle = [forgotten.pop()]
            cycle.append(cycle)
            del cycle
            [[] for _ in range(100_000)]  # so many new objects start a collection
        return x + 1

    assert Captured(plus_one, [], torch.zeros(3, device="cuda"))(torch.ones(3, device="cuda")).tolist() == [2, 2, 2]


@pytest.mark.gpu
def test_capturing_changes_no_state_and_keeps_the_functions_tensors_alive():
    counter, total, held = torch.zeros((), device="cuda"), torch.zeros(3, device="cuda"), torch.ones(3, device="cuda")
    alive = weakref.ref(held)

    def add(held, x):
        counter.add_(1)
        total.add_(x)
        return total * 2 * held

    step = Captured(partial(add, held), [counter, total], torch.ones(3, device="cuda"))
    del held
    gc.collect()
    assert alive() is not None and counter.item() == 0 and total.tolist() == [0, 0, 0]
    assert step(torch.full((3,), 5.0, device="cuda")).tolist() == [10, 10, 10]
    assert step(torch.full((3,), 1.0, device="cuda")).tolist() == [12, 12, 12]
    assert counter.item() == 2


@pytest.mark.gpu
def test_a_graph_has_the_workspace_of_its_products_in_its_own_memory():
    """Also where it warms up on the stream of all captures, which is one of 32 that PyTorch gives in turn."""

    def square(x):
        return x @ x

    x = torch.ones(8, 8, device="cuda")
    first = Captured(square, [], x)  # makes that stream, and may leave a workspace there
    while torch.cuda.Stream() != torch.cuda.graph.default_capture_stream:
        pass
    for _ in range(31):
        torch.cuda.Stream()
    del first
    torch._C._cuda_clearCublasWorkspaces()  # as Lightning does at the end of a run
    memory = SharedMemory()
    captured = Captured(square, [], x, memory)
    segments = torch.cuda.memory_snapshot(captured.graph.pool())
    assert sum(segment["total_size"] for segment in segments) > 2**22  # the result and the like take 2 MiB


class Looks(Dropped):
    """Reads a value on the host, as published code does: vmap refuses that, and so does a capture."""

    def forward(self, x):
        return super().forward(x) * (1.0 if x.abs().sum().item() > 0 else 2.0)


@pytest.mark.gpu
@pytest.mark.parametrize("build", [language_model, model_with(Dropped)])
def test_after_a_step_that_cannot_be_captured_the_next_run_is_captured(tmp_path, build):
    alone = fit(TWO, tmp_path, build=build, **on_gpu)
    looked = fit(TWO, tmp_path, build=model_with(Looks), **on_gpu)
    plain = fit(TWO, tmp_path, build=model_with(Looks), cuda_graph=False, **on_gpu)
    assert sum("capture failed" in note for note in looked.notes) == 2  # training and scoring
    assert looked.replicas == plain.replicas
    again = fit(TWO, tmp_path, build=build, **on_gpu)
    assert equal(again, alone) and again.notes == alone.notes and not any("capture" in note for note in again.notes)


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", [*REFUSED, Normed, NormedAndDropped])
def test_a_captured_loop_trains_as_one_launched_one_by_one(tmp_path, mixer):
    """Dropout draws the same numbers in both: a graph goes on from its generators' states."""
    settings = {"data": splits(train=80), "build": model_with(mixer), **on_gpu | {"epochs": 20}}
    plain, graphs = (fit(THREE, tmp_path / str(graph), cuda_graph=graph, **settings) for graph in (False, True))
    assert plain.notes == graphs.notes
    losses = ["train_loss", "val_loss"]
    assert plain.metrics[losses].equals(graphs.metrics[losses])


@pytest.mark.gpu
def test_replicas_in_a_captured_loop_have_their_own_random_numbers(tmp_path):
    settings = {"build": model_with(Dropped), **on_gpu | {"epochs": 20}}
    together, alone = fit(THREE, tmp_path, **settings), fit(THREE[2:], tmp_path, **settings)
    assert_same_results(replica_results(together, 2), replica_results(alone, 0), rtol=2e-2)
    assert equal(fit(THREE, tmp_path, **settings), together)


FLA = {
    "GatedLinearAttention": {"hidden_size": 64, "num_heads": 2},
    "RWKV7Attention": {"hidden_size": 64, "head_dim": 32, "layer_idx": 0, "num_hidden_layers": 2},
}


@pytest.mark.gpu
@pytest.mark.skipif(not (find_spec("fla") and find_spec("fla.layers")), reason="needs pip install mixerlab[fla]")
@pytest.mark.parametrize("name", FLA)
def test_a_layer_of_fla_trains(tmp_path, name, monkeypatch):
    # Autotuned kernels take the first of their configurations: RWKV7's have hundreds, which take over four minutes.
    autotuner = importlib.import_module("triton.runtime.autotuner").Autotuner
    monkeypatch.setattr(autotuner, "prune_configs", lambda self, kwargs: self.configs[:1])

    layer = getattr(importlib.import_module("fla.layers"), name)
    build = partial(LanguageModel, VOCAB, 64, n_layers=2, make_mixer=lambda: Wrapped(layer(**FLA[name]), state=64))
    result = fit(THREE, tmp_path, data=splits(train=80), build=build, **on_gpu | {"epochs": 60})
    assert result.notes[0].startswith("replicas compute one after another")
    losses = result.metrics.query("replica == 0")["train_loss"].tolist()
    assert losses[-1] < 0.7 * losses[0]
