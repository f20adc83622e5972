"""What a model starts with, which initial values of a mixer it draws anew, and that it says so."""

import pytest
import torch
from command_line import TINY
from every_mixer import MIXERS
from torch import nn

import mixerlab
from mixerlab.checks import command as check
from mixerlab.config.building import Parts
from mixerlab.mixers.attn import Attention
from mixerlab.mixers.base import keep_initial_values
from mixerlab.models.initial_values import initialise, overwritten


def built(*overrides):
    torch.manual_seed(0)
    return mixerlab.build_model(*overrides)


class Zeroed(Attention):
    def __init__(self, d_model):
        super().__init__(d_model)
        self.o_proj.weight.data.zero_()


@pytest.fixture
def config_dir(own):
    return own("mixer/zeroed", f"name: zeroed\n_target_: {__name__}.Zeroed\n")[1]


def test_linear_weights_of_the_language_model():
    for std, expected in (("null", 128**-0.5 / 3**0.5), ("0.02", 0.02), ("0.5", 0.5)):
        model = built("mixer=attn", f"model.linear_std={std}")
        weight = model.blocks[0].mixer.q_proj.weight
        assert weight.std().item() == pytest.approx(expected, rel=0.05)
        assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.1)
    tied = built("mixer=attn", "model.linear_std=fan_in", "model.tie_embeddings=true")  # as a linear weight
    assert tied.embedding.weight.std().item() == pytest.approx(128**-0.5, rel=0.1)
    kept = built("mixer=parallax", "mixer.zero_init_rho=true", "model.linear_std=0.02").blocks[0].mixer.r_proj.weight
    assert not kept.any()


@pytest.mark.parametrize("redraws", [False, True])
def test_the_auto_encoder_may_redraw_what_a_mixer_started_on_purpose(redraws):
    key = f"model.autoencoder_redraw_all={str(redraws).lower()}"
    parallax = built("task=cmp", "mixer=parallax", "mixer.zero_init_rho=true", key).blocks[0].mixer
    mamba = built("task=cmp", "mixer=mamba", key).blocks[0].mixer
    assert parallax.r_proj.weight.any() == redraws
    assert mamba.dt_proj.bias.any() != redraws
    linears = [x for x in built("task=cmp", "mixer=mamba", key).modules() if isinstance(x, nn.Linear)]
    assert [linear.weight.std().item() for linear in linears] == pytest.approx([0.02] * len(linears), rel=0.1)


@pytest.mark.parametrize(
    ("start", "parameter"),
    [
        (nn.init.zeros_, "weight"),
        (nn.init.orthogonal_, "weight"),
        (lambda weight: nn.init.uniform_(weight, -0.1, 0.1), "weight"),
        (lambda bias: nn.init.constant_(bias, 3.0), "bias"),
        (lambda weight: nn.init.normal_(weight, std=0.01), "weight"),
    ],
)
def test_values_of_a_mixer_are_seen_unless_it_keeps_them(start, parameter):
    mixer = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 32))
    parameter_of_mixer = getattr(mixer[1], parameter)
    start(parameter_of_mixer)
    assert list(overwritten(mixer, 0.02)) == [f"1.{parameter}"]
    assert list(overwritten(mixer, None)) == ([] if parameter == "weight" else ["1.bias"])  # weights stay what they are
    keep_initial_values(parameter_of_mixer)
    assert not list(overwritten(mixer, 0.02))


@pytest.mark.parametrize("keeps", [False, True])
def test_a_parametrized_weight_keeps_its_values_if_it_is_marked(keeps):
    model = nn.Module()
    model.embedding, model.linear = nn.Embedding(4, 8), nn.Linear(8, 8)
    if keeps:
        keep_initial_values(model.linear.weight)
    nn.utils.parametrizations.orthogonal(model.linear)
    before = model.linear.weight.clone()
    initialise(model, 0.02)
    assert torch.equal(model.linear.weight, before) == keeps


def test_a_weight_whose_parametrization_has_no_inverse_keeps_its_values():
    model = nn.Module()
    model.embedding, model.linear = nn.Embedding(4, 8), nn.Linear(8, 8)
    nn.utils.parametrize.register_parametrization(model.linear, "weight", nn.Softplus())
    before = model.linear.weight.clone()
    initialise(model, 0.02)
    assert torch.equal(model.linear.weight, before)


@pytest.mark.parametrize("mixer", MIXERS)
def test_our_mixers_keep_what_they_start_on_purpose(mixer):
    for autoencode in (False, True):
        assert not Parts.of(mixerlab.compose(f"mixer={mixer}")).initial_value_warnings(autoencode)


def test_each_mixer_of_a_hybrid_is_named_once(config_dir):
    cfg = mixerlab.compose("mixer=hybrid", "mixer.layers=[zeroed,attn,zeroed]", config_dir=config_dir)
    (warning,) = Parts.of(cfg).initial_value_warnings(autoencode=False)
    assert warning.startswith("mixer=zeroed sets initial values of o_proj.weight, and the model overwrites them")
    assert "keep_initial_values" in warning


def test_the_check_and_the_record_say_so(config_dir, tmp_path, capsys):
    check.main(["zeroed", "--config-dir", config_dir])
    assert "note: mixer=zeroed sets initial values of o_proj.weight" in capsys.readouterr().out
    record = mixerlab.run("mixer=zeroed", "task=icr", *TINY, f"results_dir={tmp_path / 'res'}", config_dir=config_dir)
    assert record.provenance["notes"][0].startswith("mixer=zeroed sets initial values of o_proj.weight")
