"""Which initial values of a mixer the model draws anew, and that it says so."""

from functools import partial

import pytest
from command_line import TINY
from torch import nn

import mixerlab
from mixerlab import check
from mixerlab.building import initial_value_warnings
from mixerlab.mixers.base import keep_initial_values
from mixerlab.models.initial_values import overwritten

MIXERS = ("attn", "parallax", "gdn", "mamba", "mesa")


def project(folder):
    """A folder of yamls with a mixer that starts its output projection at zero."""
    (folder / "conf" / "mixer").mkdir(parents=True)
    (folder / "zeroed.py").write_text(
        "from mixerlab.mixers.attn import Attention\n\n\n"
        "class Zeroed(Attention):\n"
        "    def __init__(self, d_model):\n"
        "        super().__init__(d_model)\n"
        "        self.o_proj.weight.data.zero_()\n"
    )
    (folder / "conf" / "mixer" / "zeroed.yaml").write_text("name: zeroed\n_target_: zeroed.Zeroed\n")
    return folder / "conf"


def started(start, parameter="weight"):
    linear = nn.Linear(64, 32)
    start(getattr(linear, parameter))
    return nn.Sequential(nn.Linear(8, 64), linear), getattr(linear, parameter)


@pytest.mark.parametrize(
    ("start", "parameter"),
    [
        (nn.init.zeros_, "weight"),
        (nn.init.orthogonal_, "weight"),
        (nn.init.xavier_uniform_, "weight"),
        (lambda weight: nn.init.uniform_(weight, -0.1, 0.1), "weight"),
        (lambda bias: nn.init.constant_(bias, 3.0), "bias"),
        (lambda bias: nn.init.constant_(bias, 0.1), "bias"),
        (lambda weight: nn.init.normal_(weight, std=0.01), "weight"),
    ],
)
def test_values_of_a_mixer_are_seen_unless_it_keeps_them(start, parameter):
    mixer, of_mixer = started(start, parameter)
    assert list(overwritten(mixer, 0.02)) == [f"1.{parameter}"]
    assert list(overwritten(mixer, None)) == ([] if parameter == "weight" else ["1.bias"])  # weights stay what they are
    keep_initial_values(of_mixer)
    assert not list(overwritten(mixer, 0.02))


def test_what_pytorch_starts_is_nobodys_choice():
    for sizes in ((8, 1), (8, 8), (64, 128), (512, 4)):
        for _ in range(200):
            assert not list(overwritten(nn.Linear(*sizes), 0.02))
    for start, parameter in ((nn.init.zeros_, "bias"), (partial(nn.init.normal_, std=0.02), "weight")):
        mixer, _ = started(start, parameter)
        assert not list(overwritten(mixer, 0.02))  # that is what they become
    nothing = nn.Linear(4, 0)
    assert not list(overwritten(nn.ModuleList((nothing, nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)))), 0.02))


def test_a_redraw_that_was_asked_for_is_not_warned_of(tmp_path):
    config_dir = project(tmp_path)
    given = "mixer=zeroed", "task=cmp"
    assert initial_value_warnings(mixerlab.compose(*given, config_dir=config_dir), True)
    redrawn = mixerlab.compose(*given, "model.autoencoder_redraw_all=true", config_dir=config_dir)
    assert not initial_value_warnings(redrawn, True)


@pytest.mark.parametrize("mixer", MIXERS)
def test_our_mixers_keep_what_they_start_on_purpose(mixer):
    for autoencode in (False, True):
        assert not initial_value_warnings(mixerlab.compose(f"mixer={mixer}"), autoencode)


def test_each_mixer_of_a_hybrid_is_named_once(tmp_path):
    cfg = mixerlab.compose("mixer=hybrid", "mixer.layers=[zeroed,attn,zeroed]", config_dir=project(tmp_path))
    (warning,) = initial_value_warnings(cfg, autoencode=False)
    assert warning.startswith("mixer=zeroed sets initial values of o_proj.weight, and the model overwrites them")
    assert "keep_initial_values" in warning


def test_the_check_and_the_record_say_so(tmp_path, capsys):
    config_dir = project(tmp_path)
    assert check.main(["zeroed", "--config-dir", str(config_dir)]) == 0
    assert "note: mixer=zeroed sets initial values of o_proj.weight" in capsys.readouterr().out
    record = mixerlab.run("mixer=zeroed", "task=icr", *TINY, f"results_dir={tmp_path / 'res'}", config_dir=config_dir)
    assert record["provenance"]["notes"][0].startswith("mixer=zeroed sets initial values of o_proj.weight")
