"""Captured steps give what launched ones give; runs of one process share graphs, and their results do not change.

Where there is no GPU, `on_a_cpu` puts the functions in the place of the graphs that would be captured of them.
"""

import gc
import importlib
import weakref
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from every_mixer import MIXERS, mixer_of
from stateful_mixers import REFUSED, Dropped, Normed, NormedAndDropped, model_with
from tiny_training import LENGTH, THREE, VOCAB, assert_same_results, fit, replica_results, splits
from torch import nn

from mixerlab.mixers.base import SequenceMixer
from mixerlab.models.auto_encoder import AutoEncoder
from mixerlab.models.language_model import LanguageModel
from mixerlab.training import capture, compiled, datamodule
from mixerlab.training import fit as story
from mixerlab.training.capture import Captured, GraphCache, Graphs, room_for
from mixerlab.training.lit_module import PopulationTraining
from mixerlab.training.optimizers import AdamW, Muon

WIDTH = 64
TWO = [(5e-3, 0), (1e-3, 1)]
LATER = {"replicas": [(2e-3, 5), (1e-2, 6)], "options": {"weight_decay": 0.5}}
on_gpu = {"accelerator": "gpu", "precision": "bf16", "epochs": 5}


@pytest.fixture
def captured(monkeypatch):
    """The names of the functions captured so far. The cache of the process starts empty."""
    names, begin = [], Captured.__init__

    def noted(self, function, *arguments):
        names.append(function.__name__)
        begin(self, function, *arguments)

    monkeypatch.setattr(Captured, "__init__", noted)
    monkeypatch.setattr(story, "_graphs", GraphCache())
    return names


@pytest.fixture
def on_a_cpu(monkeypatch):
    """Replaces a graph by its function, which works on the first run's tensors as well; the names of these so far."""
    names = []

    class StandIn:
        def __init__(self, function, written, example, memory, generators):
            names.append(function.__name__)
            before = [tensor.clone() for tensor in written]
            function(example)  # warms up, as a graph does
            for tensor, value in zip(written, before, strict=True):
                tensor.copy_(value)
            self.function = function

        def __call__(self, argument):
            return self.function(argument)

    def caching(*arguments, **options):
        return PopulationTraining(*arguments, **options | {"cache": story._graphs})

    monkeypatch.setattr(capture, "Captured", StandIn)
    monkeypatch.setattr(capture, "SharedMemory", object)
    monkeypatch.setattr(story, "PopulationTraining", caching)
    monkeypatch.setattr(story, "_graphs", GraphCache())
    return names


def same(one, other):
    assert one.replicas == other.replicas and one.metrics.equals(other.metrics)
    assert one.notes == other.notes


def language_model(mixer="attn"):
    return LanguageModel(VOCAB, WIDTH, n_layers=2, make_mixer=lambda: mixer_of(mixer, WIDTH))


def auto_encoder():
    return AutoEncoder(VOCAB, LENGTH, WIDTH, n_layers=2, make_mixer=lambda: mixer_of("attn", WIDTH))


# Sharing


def test_a_later_run_captures_nothing_and_gets_the_same_results(tmp_path, on_a_cpu):
    later = LATER | {"data": splits(train=33), "folder": tmp_path}
    alone = fit(**later)
    assert on_a_cpu == ["train", "score"]
    fit(TWO, tmp_path, graph_key="attn")
    same(fit(graph_key="attn", **later), alone)
    assert on_a_cpu == ["train", "score"] * 2


class Sum(nn.Module):
    def __init__(self, breaks):
        super().__init__()
        self.breaks, self.proj = breaks, nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        if self.breaks:
            torch._dynamo.graph_break()
        return self.proj(x).cumsum(dim=1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("breaks", "note"), [(False, "Sum is compiled: "), (True, "Sum is not compiled: ")])
def test_a_later_run_says_what_is_compiled_and_the_first_is_freed(tmp_path, on_a_cpu, monkeypatch, breaks, note):
    """It takes the later graphs of the first, for the replica that was left when the mixer had already said it."""
    make, runs = story.PopulationTraining, []

    def noted(*arguments, **options):
        run = make(*arguments, **options)
        runs.append(weakref.ref(run))
        return run

    monkeypatch.setattr(story, "PopulationTraining", noted)
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    monkeypatch.setattr(compiled, "_functions", {})
    monkeypatch.setattr(compiled, "_failures", {})
    build = partial(LanguageModel, VOCAB, WIDTH, 2, partial(Sum, breaks))
    settings = {"build": build, "folder": tmp_path, "graph_key": "sum", "compile": True}
    first = fit([(1e30, 0), (1e-3, 1)], epochs=4, **settings)
    assert len(first.notes) == 1 and first.notes[0].startswith(note)
    assert fit([(2e-3, 5)], epochs=1, **settings).notes == first.notes
    assert on_a_cpu == ["train", "score"] * 2  # for two replicas, and for one
    gc.collect()
    assert len(story._graphs.free) == 2 and [run() for run in runs] == [None] * 2


def one_later(data):
    """The same rows with each target one position later: other positions are scored, but equally many."""
    return {name: (inputs, np.roll(targets, 1, axis=1)) for name, (inputs, targets) in data.items()}


@pytest.mark.parametrize(
    "other",
    [
        {"graph_key": "another"},
        {"graph_key": None},
        {"batch_size": 8},
        {"replicas": TWO[:1]},
        {"optimizer": AdamW, "graph_key": "adamw"},
        {"precision": "bf16"},
        {"data": splits(train=2**7)},
        {"data": one_later(splits())},
    ],
)
def test_different_runs_are_captured_separately(tmp_path, on_a_cpu, other, monkeypatch):
    monkeypatch.setattr(datamodule, "LEAST_ROWS", 2**7)  # so that 110 examples get tensors of 128 rows
    settings = {"replicas": TWO, "graph_key": "attn", "epochs": 1, "optimizer": Muon}
    fit(folder=tmp_path, **settings)
    fit(folder=tmp_path, **settings | other)
    assert on_a_cpu == ["train", "score"] * 2


def test_after_out_of_memory_a_run_is_tried_again_with_nothing_shared(tmp_path, on_a_cpu, monkeypatch, caplog):
    alone = fit(TWO, tmp_path, epochs=1)
    fit(TWO, tmp_path, epochs=1, graph_key="kept")
    kept = [weakref.ref(graphs) for graphs in story._graphs.free.values()]
    take, step = GraphCache.take, Graphs.step

    def noted(self, key, written, read, generators):
        if key is None:
            assert [graphs() for graphs in kept] == [None, None]  # freed before anything else allocates memory
        return take(self, key, written, read, generators)

    def full(self, function, example):
        if self.memory is not None:
            kept.append(weakref.ref(self))
            raise torch.OutOfMemoryError("others have it")
        return step(self, function, example)

    monkeypatch.setattr(GraphCache, "take", noted)
    monkeypatch.setattr(Graphs, "step", full)
    gc.disable()
    try:
        whole = fit(TWO, tmp_path, epochs=1, graph_key="large")
    finally:
        gc.enable()
    note = whole.notes.pop()
    assert "graphs were shared" in note and note in caplog.text
    same(whole, alone)  # so it was not halved: `alone` has no note
    assert len(kept) == 2 and story._graphs.memory is None


def test_graphs_are_for_one_caller_at_a_time_whose_tensors_move_to_their_addresses(on_a_cpu):
    cache = GraphCache()
    first, second, third = torch.zeros(3), nn.Parameter(torch.arange(3.0)), torch.zeros(3)
    graphs = cache.take("key", [first], [])
    cache.give_back(graphs)
    assert cache.take("key", [second], []) is graphs
    assert second.tolist() == [0, 1, 2] and second.requires_grad
    assert cache.take("key", [third], []) is not graphs
    assert second.data_ptr() == first.data_ptr() != third.data_ptr()


@pytest.mark.parametrize(
    "other", [torch.zeros(4), torch.zeros(3, dtype=torch.float64), torch.zeros(3, 2)[:, 0], torch.zeros(3, 1)]
)
def test_tensors_of_another_shape_have_their_own_graphs(on_a_cpu, other):
    cache = GraphCache()
    graphs = cache.take("key", [torch.zeros(3)], [])
    cache.give_back(graphs)
    assert cache.take("key", [other], []) is not graphs


def test_the_cache_keeps_the_latest_graphs(on_a_cpu):
    cache = GraphCache(kept=2)
    for key in ("a", "b", "c", None):
        cache.give_back(cache.take(key, [torch.zeros(3)], []))
    assert [key for key, *_ in cache.free] == ["b", "c"]
    assert cache.clear() and not cache.clear()
    assert not cache.free and cache.memory is None


def test_room_is_a_power_of_two():
    assert [room_for(count, 8) for count in (1, 8, 9, 16, 17)] == [8, 8, 16, 16, 32]


# On a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", MIXERS)
def test_captured_and_launched_steps_give_the_same_curves(tmp_path, mixer):
    settings = {"data": splits(train=80), "build": partial(language_model, mixer), **on_gpu | {"epochs": 40}}
    plain, graphs = (fit(TWO, tmp_path / str(graph), cuda_graph=graph, **settings) for graph in (False, True))
    assert plain.notes == graphs.notes == []
    for column in ("train_loss", "val_loss"):
        losses = [torch.from_numpy(result.metrics[column].to_numpy()) for result in (plain, graphs)]
        torch.testing.assert_close(*losses, rtol=2e-2, atol=2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("build", [*(partial(language_model, mixer) for mixer in MIXERS), auto_encoder])
def test_shared_graphs_give_the_same_bits(tmp_path, captured, build):
    later = LATER | {"data": splits(train=300), "build": build, "folder": tmp_path, **on_gpu}
    alone = fit(**later)
    captured.clear()
    fit(TWO, tmp_path, graph_key="it", build=build, **on_gpu)
    same(fit(graph_key="it", **later), alone)
    assert captured == ["train", "score"]


@pytest.mark.gpu
def test_graphs_of_fewer_replicas_are_shared_too(tmp_path, captured):
    """One replica diverges and the others continue in graphs for fewer replicas. The next run finds both."""
    settings = {"build": language_model, "folder": tmp_path, **on_gpu}
    later = {"replicas": [(2e-3, 5), (1e30, 6), (3e-3, 7)], "data": splits(train=300)}
    alone = fit(**settings, **later)
    captured.clear()
    fit([(1e30, 0), (1e-3, 1), (1e-2, 2)], graph_key="attn", **settings)
    same(fit(graph_key="attn", **settings, **later), alone)
    assert captured == ["train", "score"] * 2


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
def test_a_step_that_cannot_be_captured_runs_plainly_with_a_warning(caplog):
    total = torch.zeros((), device="cuda")

    def looks(x):
        total.add_(x.sum().item())  # a host synchronisation cannot be captured
        return total

    graphs = GraphCache().take(None, [total], [])
    stream = torch.cuda.current_stream()
    step, reason = graphs.step(looks, torch.ones(2, device="cuda"))
    assert torch.cuda.current_stream() == stream
    assert reason is not None and "capture failed" in reason and reason in caplog.text
    assert total.item() == 0
    assert step(torch.full((2,), 3.0, device="cuda")).item() == 6


@pytest.mark.gpu
def test_graphs_share_their_memory():
    cache = GraphCache()

    def large(x):
        return (x + torch.zeros(2**26, device="cuda")).sum()  # 256 MiB twice

    def held_after_one_more():
        graphs = cache.take(object(), [torch.zeros(1, device="cuda")], [])
        graphs.step(large, torch.ones(1, device="cuda"))
        cache.give_back(graphs)
        segments = torch.cuda.memory_snapshot()
        return sum(part["total_size"] for part in segments if part["segment_pool_id"] == cache.memory.pool)

    first = held_after_one_more()
    assert first >= 2**29
    assert [held_after_one_more() for _ in range(3)] == [first] * 3


# Replicas one after another on a GPU


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
def test_replicas_in_a_captured_loop_have_their_own_random_numbers_and_runs_share_its_graphs(tmp_path):
    settings = {"build": model_with(Dropped), **on_gpu | {"epochs": 20}}
    together, alone = fit(THREE, tmp_path, **settings), fit(THREE[2:], tmp_path, **settings)
    assert_same_results(replica_results(together, 2), replica_results(alone, 0), rtol=2e-2)
    fit([(5e-3, 0), (1e-3, 1), (1e-3, 2)], tmp_path, graph_key="dropped", **settings)
    assert fit(THREE, tmp_path, graph_key="dropped", **settings).metrics.equals(together.metrics)


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


@pytest.mark.gpu
@pytest.mark.skipif(not find_spec("fla"), reason="needs pip install mixerlab[fla]")
@pytest.mark.parametrize("name", FLA)
def test_a_layer_of_fla_trains(tmp_path, name, monkeypatch):
    # Autotuned kernels take the first of their configurations: RWKV7's have hundreds, which take over four minutes.
    autotuner = importlib.import_module("triton.runtime.autotuner").Autotuner
    monkeypatch.setattr(autotuner, "prune_configs", lambda self, kwargs: self.configs[:1])

    def build():
        return LanguageModel(VOCAB, 64, n_layers=2, make_mixer=lambda: Wrapped(name, **FLA[name]))

    result = fit(THREE, tmp_path, data=splits(train=80), build=build, **on_gpu | {"epochs": 60})
    assert result.notes[0].startswith("replicas compute one after another")
    losses = result.metrics.query("replica == 0")["train_loss"].tolist()
    assert losses[-1] < 0.7 * losses[0]
