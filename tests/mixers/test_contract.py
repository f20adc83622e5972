"""The contract of a sequence mixer: ours, with the choices that the paper leaves open, and published ones."""

from importlib.util import find_spec

import pytest
import torch
from every_mixer import MIXERS, mixer_of
from torch import nn

from mixerlab.benchmarks.third_party import Published
from mixerlab.checks.contract import WIDTH, check_everything, check_mixer, without_zeros
from mixerlab.mixers.wrapped import Wrapped


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 3))])
@pytest.mark.parametrize("name", MIXERS)
def test_contract(name, seed, caplog):
    """Whatever is drawn: the norm of mesa's heads makes much of the last bits where a query and a key nearly cancel."""
    torch.manual_seed(seed)
    check_everything(lambda: mixer_of(name, WIDTH))
    assert not caplog.messages


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("attn", {"bias": True, "qk_norm": False}),
        ("parallax", {"bias": True, "qkr_norm": False, "zero_init_rho": False}),
        ("parallax", {"bias": True, "zero_init_rho": False, "rope_on_rho": True}),
        ("attn", {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16}),
        ("parallax", {"num_heads": 4, "num_kv_heads": 2, "head_dim": 6, "rho_gate": True, "bias": True}),
        ("gdn", {"expand_v": 1, "allow_neg_eigval": True}),
        ("mamba", {"zero_dt_bias": True}),
    ],
)
def test_the_contract_of_options(name, options, caplog):
    check_mixer(lambda: without_zeros(mixer_of(name, WIDTH, **options)))
    assert not caplog.messages


@pytest.mark.parametrize("name", ["parallax", "lla", "affine_linear", "gdn", "deltanet", "mamba", "mesa"])
def test_a_mixer_with_a_kernel_says_so(name):
    assert mixer_of(name, 128).resolved_backend(torch.device("cuda"), torch.bfloat16) == "triton"


@pytest.mark.parametrize(("name", "options"), [("lla", {}), ("mesa", {"affine": True})])
def test_a_mixer_says_that_a_part_of_it_has_no_kernel_of_its_size(name, options):
    mixer = mixer_of(name, 128, num_heads=1, **options)
    assert mixer.resolved_backend(torch.device("cuda"), torch.bfloat16) == "reference"


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("attn", {"num_heads": 3}, "mixer.num_heads=3 does not divide d_model=32"),
        ("parallax", {"num_heads": 32}, "heads of 1, and RoPE rotates pairs"),
        ("attn", {"num_kv_heads": 3}, "mixer.num_kv_heads=3 does not divide mixer.num_heads=2"),
        ("parallax", {"head_dim": 5}, "mixer.head_dim=5"),
        ("gdn", {"num_heads": 5}, "mixer.num_heads=5"),
        ("gdn", {"d_conv": -1}, "mixer.d_conv=-1"),
        ("mesa", {"ridge_lower_bound": 1.0}, "mixer.ridge_lower_bound=1.0"),
        ("mamba", {"d_state": 0}, "mixer.d_state=0"),
        ("mamba", {"dt_min": 0.2}, "mixer.dt_min=0.2"),
    ],
)
def test_refuses_with_the_key_and_the_value(name, overrides, message):
    with pytest.raises(Exception, match=message) as caught:  # Hydra wraps what the constructor raises
        mixer_of(name, WIDTH, **overrides)
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "package"),
    [("RotaryAttention", "rotary_embedding_torch"), ("MinGRU", "minGRU_pytorch"), ("Titans", "titans_pytorch")],
)
def test_a_published_mixer_keeps_the_contract(layer, package):
    if not find_spec(package):
        pytest.skip(f"needs {package}")
    check_mixer(lambda: Published(WIDTH, layer))


class Chunks(nn.Module):
    """A sum within chunks of four, and of the chunks before through another weight; other lengths are refused."""

    def __init__(self, d_model):
        super().__init__()
        self.value, self.carry = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        chunks = self.value(x).unflatten(1, (x.shape[1] // 4, 4))
        before = chunks.sum(2).cumsum(1) - chunks.sum(2)
        return (chunks.cumsum(2) + self.carry(before)[:, :, None]).flatten(1, 2), None


def test_a_layer_of_whole_chunks_keeps_the_contract_when_wrapped():
    assert check_mixer(lambda: Wrapped(Chunks(WIDTH), WIDTH, multiple_of=4)).unused is None
    x = torch.randn(2, 6, WIDTH)
    with pytest.raises(RuntimeError):
        Chunks(WIDTH)(x)
