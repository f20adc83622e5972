"""Replicas compute side by side, or one after another if vmap refuses the model, with the results of each alone."""

from unittest import mock

import pytest
import torch
from stateful_mixers import REFUSED, NormedAndDropped, Recurrent, Wrong, line_of, model_with
from tiny_training import THREE, VOCAB, WIDTH, assert_same_results, build_model, fit, replica_results
from torch import nn
from torch.utils.checkpoint import checkpoint

from mixerlab.records.errors import RefusedMixer, with_place
from mixerlab.training.execution import choose_execution
from mixerlab.training.population import ALL, Population


@pytest.mark.parametrize("mixer", REFUSED)
def test_what_vmap_refuses_trains_in_a_loop(tmp_path, mixer):
    together = fit(THREE, tmp_path, build=model_with(mixer), epochs=2)
    (note,) = together.notes
    assert note.startswith("replicas compute one after another (vmap refuses the model: RuntimeError: ")
    assert f"in {mixer.__name__}.forward ({line_of(mixer.forward)}" in note
    losses = [summary["train_loss"] for summary in together.replicas]
    assert len(set(losses)) == 3
    for number, replica in enumerate(THREE[1:], 1):
        alone = fit([replica], tmp_path, build=model_with(mixer), epochs=2)
        assert_same_results(replica_results(together, number), replica_results(alone, 0))


class Recomputes(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return checkpoint(self.proj, x, use_reentrant=False).cumsum(dim=1)


@pytest.mark.parametrize("execution", ["auto", "loop"])
def test_a_layer_that_backward_computes_again_is_refused(tmp_path, execution):
    with pytest.raises(RefusedMixer, match=r"backward reads parameters from the module.*torch\.utils\.checkpoint"):
        fit(THREE, tmp_path, build=model_with(Recomputes), execution=execution)


def test_vmap_may_be_insisted_on(tmp_path):
    with pytest.raises(ValueError, match=r"trainer\.replicas=vmap, but vmap refuses .*Recurrent\.forward.*or loop"):
        fit(THREE, tmp_path, build=model_with(Recurrent), execution="vmap")


@pytest.mark.parametrize("execution", ["auto", "vmap", "loop"])
def test_an_error_of_the_model_is_its_own_and_says_where(tmp_path, execution):
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as caught:
        fit([(1e-2, 0)], tmp_path, build=model_with(Wrong), execution=execution)
    assert with_place(caught.value).endswith(f", in Wrong.forward ({line_of(Wrong.forward)}")


def test_out_of_memory_is_no_refusal(monkeypatch):
    """Though there is room for one replica, in which the model is tried next."""
    population = Population(build_model, (0, 1))
    monkeypatch.setattr(population.model, "forward", mock.Mock(wraps=population.model.forward))
    population.model.forward.side_effect = [torch.OutOfMemoryError("no room"), *(mock.DEFAULT,) * 9]
    with pytest.raises(torch.OutOfMemoryError):
        choose_execution(population, "auto", torch.zeros(2, 1, 3, dtype=torch.int64), ALL, bf16=False)


def test_trying_leaves_no_trace():
    population = Population(model_with(NormedAndDropped), (0, 1))
    parameters, buffers = population.parameters_by_replica.clone(), [b.clone() for b in population.model.buffers()]
    before = torch.get_rng_state()
    choose_execution(population, "auto", torch.randint(VOCAB, (2, 3, 7), generator=torch.Generator()), ALL, bf16=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(population.parameters_by_replica, parameters) and population.parameters_by_replica.grad is None
    assert all(map(torch.equal, population.model.buffers(), buffers))
    assert all(torch.equal(b[0], b[1]) for b in population.buffers_by_replica.values())
    assert population.buffers_by_replica and population.model.training
