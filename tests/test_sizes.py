"""`model.d_ff` and `model.match_params`: models of one size, whatever their mixers."""

import pytest

import mixerlab
from mixerlab.config.values import checked
from mixerlab.records.identity import run_id


def model(*overrides):
    return mixerlab.build_model("task=icr", *overrides)


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def identity(*overrides):
    return run_id(checked(mixerlab.compose("task=icr", *overrides))[1])


def test_d_ff_is_the_inner_width_of_the_mlps():
    for task in ("icr", "cmp"):
        (first, _) = mixerlab.build_model("mixer=attn", f"task={task}", "model.d_ff=48").blocks
        assert first.mlp.w1.weight.shape == (48, 128)
    assert identity("mixer=attn", "model.d_ff=48") != identity("mixer=attn")


@pytest.mark.parametrize(
    "mixer",
    ["mixer=gdn", pytest.param("mixer=mamba", marks=pytest.mark.slow), "mixer=hybrid mixer.layers=[attn,gdn]"],
)
def test_a_model_has_as_many_parameters_as_with_another_mixer(mixer):
    wanted, matched = count(model("mixer=attn")), model(*mixer.split(), "model.match_params=attn")
    step = 16 * 3 * 128 * 2
    assert abs(count(matched) - wanted) <= step / 2 < abs(count(model(*mixer.split())) - wanted)


def test_a_mixer_that_is_matched_to_itself_is_the_same_run():
    assert identity("mixer=attn", "model.match_params=attn") == identity("mixer=attn")
    composed = mixerlab.compose("task=icr", "mixer=gdn", "model.match_params=attn").model
    assert identity("mixer=gdn", f"model.d_ff={composed.d_ff}") == identity("mixer=gdn", "model.match_params=attn")
