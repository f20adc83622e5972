"""Which columns of the population tensor belong to which parameter, and how each is optimised."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from every_mixer import MIXERS, mixer_of

from mixerlab.models.auto_encoder import AutoEncoder
from mixerlab.models.language_model import LanguageModel
from mixerlab.training.population import Layout, Population, Rule


def models(mixer_name):
    make_mixer = partial(mixer_of, mixer_name, 32)
    return [LanguageModel(16, 32, 2, make_mixer), AutoEncoder(16, 12, 32, 2, make_mixer)]


@pytest.mark.parametrize("name", MIXERS)
def test_covers_every_parameter_exactly_once(name):
    for model in models(name):
        layout = Layout(model)
        shapes = {parameter_name: parameter.shape for parameter_name, parameter in model.named_parameters()}
        assert {slot.name: slot.shape for slot in layout.slots} == shapes
        assert len(layout.slots) == len(shapes)
        columns = [column for slot in layout.slots for column in range(slot.start, slot.stop)]
        assert columns == list(range(sum(shape.numel() for shape in shapes.values())))
        assert [layout.span(rule).start for rule in Rule] == sorted(layout.span(rule).start for rule in Rule)


@pytest.mark.parametrize("name", MIXERS)
def test_matrices_of_one_shape_are_adjacent(name):
    slots = [slot for slot in Layout(models(name)[0]).slots if slot.rule is Rule.MATRIX]
    shapes = [slot.shape for slot in slots]
    runs = 1 + sum(one != other for one, other in pairwise(shapes))
    assert runs == len(set(shapes)) < len(shapes)


EXPECTED = {  # of one block's mixer; everything that ends in _proj.weight is a matrix
    "attn": dict.fromkeys(("q_norm.weight", "k_norm.weight"), Rule.GAIN),
    "parallax": dict.fromkeys(("q_norm.weight", "k_norm.weight", "r_norm.weight"), Rule.GAIN),
    "gdn": {
        "A_log": Rule.GAIN,
        "dt_bias": Rule.GAIN,
        "norm.weight": Rule.GAIN,
        **dict.fromkeys(("q_conv.weight", "k_conv.weight", "v_conv.weight"), Rule.TABLE),
    },
    "mamba": {
        "A_log": Rule.TABLE,  # two axes, yet one rate per state
        "D": Rule.GAIN,
        "conv.weight": Rule.TABLE,
        "conv.bias": Rule.GAIN,
        "dt_proj.bias": Rule.GAIN,
    },
    "mesa": {
        "ridge_logit": Rule.GAIN,
        "norm.weight": Rule.GAIN,
        "a_proj.bias": Rule.GAIN,
        "b_proj.bias": Rule.GAIN,
        **dict.fromkeys(("q_conv.weight", "k_conv.weight"), Rule.TABLE),
    },
}


@pytest.mark.parametrize("name", EXPECTED)
def test_rules_of_each_mixer(name):
    rules = {slot.name: slot.rule for slot in Layout(models(name)[0]).slots}
    prefix = "blocks.1.mixer."
    ours = {key.removeprefix(prefix): rule for key, rule in rules.items() if key.startswith(prefix)}
    matrices = {key: Rule.MATRIX for key in ours if key.endswith("_proj.weight")}
    assert ours == EXPECTED[name] | matrices and matrices


def test_rules_of_the_backbone():
    language_model, auto_encoder = (
        {slot.name: slot.rule for slot in Layout(model).slots if ".mixer." not in slot.name} for model in models("attn")
    )
    mlp = dict.fromkeys((f"mlp.w{i}.weight" for i in (1, 2, 3)), Rule.MATRIX)
    block = mlp | dict.fromkeys(("mixer_norm.weight", "mlp_norm.weight"), Rule.GAIN)
    ends = {
        "embedding.weight": Rule.TABLE,
        "head.weight": Rule.TABLE,
        "head.bias": Rule.GAIN,
        "norm.weight": Rule.GAIN,
    }
    blocks = {f"blocks.{i}.{key}": rule for i in range(2) for key, rule in block.items()}
    assert language_model == ends | blocks
    layer = {"norm.weight": Rule.GAIN, "linear.weight": Rule.MATRIX, "linear.bias": Rule.GAIN}
    decoder = {f"decoder.{i}.{key}": rule for i in range(2) for key, rule in layer.items()}
    assert auto_encoder == ends | blocks | decoder


class Joined(torch.nn.Module):
    """Names the layers that it joins in another order than it makes them in, with one of another shape among them."""

    input_projections = ("c", "small", "a")

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (torch.nn.Linear(8, 8) for _ in range(4))
        self.small = torch.nn.Linear(8, 2)


def test_what_a_module_joins_stands_side_by_side():
    for model, prefix in ((Joined(), ""), (torch.nn.Sequential(torch.nn.Linear(8, 8), Joined()), "1.")):
        names = [slot.name for slot in Layout(model).slots if slot.shape == (8, 8)]
        others = ["0.weight"] if prefix else []
        assert names == [*others, *(f"{prefix}{child}.weight" for child in "cabd")]


@pytest.mark.parametrize("value", [torch.nn.Linear(8, 8), torch.nn.ModuleList([torch.nn.Linear(8, 8)]), ("e", "a")])
def test_other_things_of_that_name_declare_nothing(value):
    model = torch.nn.ModuleDict({name: torch.nn.Linear(8, 8) for name in "abcd"})
    model.input_projections = value
    names = [slot.name for slot in Layout(model).slots if slot.shape == (8, 8)]
    assert names[:4] == [f"{child}.weight" for child in "abcd"]


@pytest.mark.parametrize("name", ["attn", "parallax", "gdn", "mamba", "mesa"])
def test_the_projections_of_our_mixers_stand_side_by_side(name):
    for model in models(name):
        slots = {slot.name: slot for slot in Layout(model).slots}
        joined = [(key, module) for key, module in model.named_modules() if hasattr(module, "input_projections")]
        assert len(joined) == 2 * len(model.blocks)  # mixers and MLPs
        for key, module in joined:
            found = [slots[f"{key}.{child}.weight"] for child in module.input_projections]
            alike = [slot for slot in found if slot.shape == found[0].shape]
            assert all(slot.stop == following.start for slot, following in pairwise(alike))


def test_describe_names_every_parameter_and_counts():
    layout = Layout(models("mamba")[0])
    text = layout.describe()
    for slot in layout.slots:
        assert slot.name.replace("blocks.0.", "blocks.*.").replace("blocks.1.", "blocks.*.") in text
    for rule in Rule:
        span = layout.span(rule)
        assert f"{rule}: {span.stop - span.start:>9,}" in text


def test_a_population_starts_each_replica_from_its_seed():
    """The start depends neither on the global random state, which does not change, nor on the other replicas."""
    make = partial(LanguageModel, 16, 32, 2, partial(mixer_of, "attn", 32))
    torch.manual_seed(99)
    before = torch.get_rng_state()
    together = Population(make, seeds=(4, 7)).parameters_by_replica
    assert torch.equal(torch.get_rng_state(), before)
    alone = Population(make, seeds=(7,)).parameters_by_replica
    assert torch.equal(together[1], alone[0])
    assert not torch.equal(together[0], together[1])
