"""What a population takes of its models: columns and rule of each parameter, and starts that only the seed decides."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from every_mixer import MIXERS, mixer_of
from tiny_training import VOCAB, build_model
from torch import nn

from mixerlab.models.auto_encoder import AutoEncoder
from mixerlab.models.language_model import LanguageModel
from mixerlab.training.layout import Grouping, Layout, Rule
from mixerlab.training.population import ALL, Population


def models(mixer_name):
    make_mixer = partial(mixer_of, mixer_name, 32)
    return [LanguageModel(16, 32, 2, make_mixer), AutoEncoder(16, 12, 32, 2, make_mixer)]


@pytest.mark.parametrize("name", MIXERS)
def test_rules_of_each_mixer(name):
    """Projections are matrices, filters and the rates of mamba's states a table, and the rest are gains.

    Muon may have the filters, which are not lowered together with the hidden weights.
    """
    model, prefix = models(name)[0], "blocks.1.mixer."
    usual, by_muon = (
        {slot.name.removeprefix(prefix): slot for slot in layout.slots if slot.name.startswith(prefix)}
        for layout in (Layout(model), Layout(model, Grouping(filters="muon")))
    )
    matrices = {key: Rule.MATRIX for key in usual if key.endswith("_proj.weight")}
    tables = {key: Rule.TABLE for key in usual if key.endswith("conv.weight") or (name, key) == ("mamba", "A_log")}
    assert {key: slot.rule for key, slot in usual.items()} == dict.fromkeys(usual, Rule.GAIN) | tables | matrices
    filters = {key for key in usual if by_muon[key].rule is not usual[key].rule}
    assert filters == set(tables) and matrices
    assert {key for key, slot in by_muon.items() if slot.is_lowered} == set(matrices)
    assert max(by_muon[key].stop for key in matrices) <= min((by_muon[key].start for key in filters), default=1e9)


@pytest.mark.parametrize(
    ("grouping", "changed"),
    [
        (Grouping(decoder="adam"), dict.fromkeys(("decoder.0.linear.weight", "decoder.1.linear.weight"), Rule.TABLE)),
        (Grouping(head="muon"), {"head.weight": Rule.MATRIX}),
    ],
)
def test_who_optimises_decoder_and_head_may_be_chosen(grouping, changed):
    model = models("attn")[1]
    usual, chosen = Layout(model), Layout(model, grouping)
    rules = {slot.name: slot.rule for slot in usual.slots}
    assert {slot.name: slot.rule for slot in chosen.slots if slot.rule is not rules[slot.name]} == changed
    lowered = [{slot.name for slot in layout.slots if slot.is_lowered} for layout in (usual, chosen)]
    assert "head.weight" not in lowered[1] and lowered[0] - lowered[1] == changed.keys() - {"head.weight"}


class Scaled(nn.Module):
    def __init__(self, scale=lambda size: torch.tensor(0.5), shift=torch.ones):
        super().__init__()
        self.model, self.scale = build_model(), nn.Parameter(torch.as_tensor(scale(VOCAB)))
        self.register_buffer("shift", torch.as_tensor(shift(VOCAB)))

    def forward(self, tokens, scored=ALL):
        return self.scale * self.model(tokens, scored) + self.shift


def drawn_by_numpy(size):
    return np.random.randn(size).astype("float32")  # noqa: NPY002


def drawn_by_python(size):
    return torch.tensor([random.random() for _ in range(size)])


@pytest.mark.parametrize("draw", [torch.randn, drawn_by_numpy, drawn_by_python])
def test_the_start_depends_on_the_seed_only(draw):
    """Neither on the global generators, which do not change, nor on the other replicas."""

    def states():
        return torch.get_rng_state().tolist(), np.random.get_state()[2], random.getstate()  # noqa: NPY002

    before = states()
    together = Population(lambda: Scaled(draw), [0, 1, 0]).parameters_by_replica
    assert states() == before
    torch.manual_seed(99)
    alone = Population(lambda: Scaled(draw), [1]).parameters_by_replica
    assert torch.equal(together[0], together[2]) and not torch.equal(together[0], together[1])
    assert torch.equal(alone[0], together[1])


unseeded = np.random.default_rng()
REFUSED = {
    "shape of buffer shift depends on the seed": lambda: Scaled(shift=lambda n: torch.ones(torch.randint(999, ()))),
    "parameter scale starts otherwise each time": lambda: Scaled(lambda n: unseeded.random(n, dtype=np.float32)),
    "buffer shift starts otherwise each time": lambda: Scaled(shift=unseeded.random),
    "scale is complex64, .* imaginary parts as two of float32": lambda: Scaled(lambda n: torch.ones(n) + 0j),
    "scale is float64, .* keep it as float32": lambda: Scaled(lambda n: torch.ones(n).double()),
}


@pytest.mark.parametrize("message", REFUSED)
def test_models_that_replicas_cannot_share_are_refused(message):
    with pytest.raises(ValueError, match=message):
        Population(REFUSED[message], [0, 1])
