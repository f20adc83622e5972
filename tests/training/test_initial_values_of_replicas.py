"""What a population takes of its models: parameters, buffers, and initial values that only the seed decides."""

import random

import numpy as np
import pytest
import torch
from tiny_training import THREE, VOCAB, assert_same_results, build_model, fit, replica_results
from torch import nn

from mixerlab.training.optimizers import AdamW, Muon
from mixerlab.training.population import ALL, Population


class Scaled(nn.Module):
    """The model with a scalar parameter and with a buffer, whose values come from the function `of`."""

    def __init__(self, of=torch.ones):
        super().__init__()
        self.model, self.scale = build_model(), nn.Parameter(torch.tensor(0.5))
        self.register_buffer("shift", of(VOCAB))

    def forward(self, tokens, scored=ALL):
        return self.scale * self.model(tokens, scored) + self.shift


@pytest.mark.parametrize("optimizer", [Muon, AdamW])
def test_a_parameter_may_be_a_scalar(tmp_path, optimizer):
    together = fit(THREE, tmp_path, optimizer=optimizer, build=Scaled)
    for number, replica in enumerate(THREE):
        alone = fit([replica], tmp_path, optimizer=optimizer, build=Scaled)
        assert_same_results(replica_results(together, number), replica_results(alone, 0))


def test_what_replicas_cannot_share_is_refused():
    Population(Scaled, [0, 1])
    message = "buffer shift depends on the seed, and replicas share buffers: train one seed per run"
    with pytest.raises(ValueError, match=message):
        Population(lambda: Scaled(torch.randn), [0, 1])
    with pytest.raises(ValueError, match=r"has requires_grad=False, and all parameters are trained: make it a buffer"):
        Population(lambda: build_model().requires_grad_(False), [0])


def test_a_buffer_of_nan_is_the_same_for_all_seeds():
    Population(lambda: Scaled(lambda size: torch.full((size,), torch.nan)), [0, 1])


class Drawn(nn.Module):
    """The model with a parameter whose initial values come from the function `draw`."""

    def __init__(self, draw):
        super().__init__()
        self.model, self.scale = build_model(), nn.Parameter(torch.tensor(draw(VOCAB), dtype=torch.float32))

    def forward(self, tokens, scored=ALL):
        return self.scale * self.model(tokens, scored)


def test_initial_values_from_numpy_or_python_depend_on_the_seed_only():
    for draw in (np.random.randn, lambda size: [random.random() for _ in range(size)]):
        before = np.random.get_state()[2], random.getstate()  # noqa: NPY002
        population = Population(lambda: Drawn(draw), [0, 1, 0])  # noqa: B023
        first, second, again = population.parameters_by_replica
        assert torch.equal(first, again) and not torch.equal(first, second)
        assert (np.random.get_state()[2], random.getstate()) == before  # noqa: NPY002


def test_initial_values_that_no_seed_repeats_are_refused():
    generator = np.random.default_rng()
    message = r"parameter scale starts otherwise each time the model is built with the same seed: draw it with torch"
    with pytest.raises(ValueError, match=message):
        Population(lambda: Drawn(generator.random), [0])
    for seeds in ([0], [0, 1]):
        with pytest.raises(ValueError, match="buffer shift starts otherwise each time"):
            Population(lambda: Scaled(lambda size: torch.tensor(generator.random(size))), seeds)


@pytest.mark.parametrize(
    ("dtype", "fix"),
    [
        (torch.complex64, "scale is complex64, .*: keep its real and imaginary parts as two of float32"),
        (torch.float64, "scale is float64, and parameters are trained in float32: keep it as float32"),
    ],
)
def test_a_parameter_of_another_dtype_is_refused_by_name(dtype, fix):
    def build():
        model = Scaled()
        model.scale = torch.nn.Parameter(model.scale.detach().to(dtype))
        return model

    with pytest.raises(ValueError, match=fix):
        Population(build, [0])
