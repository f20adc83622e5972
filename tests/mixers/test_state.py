"""The state of a mixer: what it gives token by token is what it gives of a whole sequence."""

import pytest
import torch
from every_mixer import CONF, MIXERS, Cumulated, mixer_of
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import mixerlab
from mixerlab.checks.contract import without_zeros
from mixerlab.mixers.projected import ProjectedMixer

WIDTH, LENGTH = 32, 21
CPU = torch.device("cpu")
OPTIONS = [
    *((name, {}) for name in MIXERS),
    ("attn", {"bias": True, "qk_norm": False, "num_heads": 4}),
    ("parallax", {"bias": True, "qkr_norm": False}),
    ("parallax", {"rope_on_rho": True, "num_heads": 1}),
    ("attn", {"num_heads": 4, "num_kv_heads": 2, "head_dim": 6}),
    ("parallax", {"num_heads": 4, "num_kv_heads": 1, "head_dim": 16, "rho_gate": True, "rope_on_rho": True}),
    ("attn", {"window": 4, "num_kv_heads": 1}),
    ("parallax", {"window": 4, "zero_init_rho": False}),
    ("parallax", {"window": 30}),
    ("gdn", {"expand_v": 1, "num_heads": 4, "d_conv": 1}),
    ("gdn", {"d_conv": 6, "expand_v": 3}),
    ("gdn", {"ungated": True}),
    ("deltanet", {"allow_neg_eigval": True}),
    ("linear", {"num_heads": 4, "qk_norm": False}),
    ("affine_linear", {"num_heads": 1, "kr_norm": False, "zero_init_rho": False}),
    ("lla", {"ridge": 0.1, "relative_ridge": False, "bandwidth": 8.0, "num_heads": 4, "qk_norm": False}),
    ("gdn", {"d_conv": 0, "unnormed": True, "num_heads": 4}),
    ("mesa", {"d_conv": 0, "unnormed": True, "ungated": True}),
    ("affine_mesa", {"d_conv": 0, "unnormed": True, "ungated": True}),
    ("kda", {"d_conv": 0, "allow_neg_eigval": True, "chunk_size": 8, "num_heads": 4}),
    ("affine_delta", {"d_conv": 0, "unnormed": True, "num_heads": 4}),
    ("mamba", {"d_conv": 1, "expand": 1, "zero_dt_bias": True}),
    ("mamba", {"d_conv": 6, "d_state": 3, "dt_rank": 5}),
    ("mesa", {"d_conv": 1, "num_heads": 4}),
    ("mesa", {"d_conv": 6, "chunk_size": 4, "cg_iterations": 5}),
]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def noisy(mixer):
    """With biases, gains and rates that differ from channel to channel."""
    for parameter in without_zeros(mixer).parameters():
        if parameter.ndim == 1:
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return mixer


def in_pieces(mixer, x, lengths, dtype=torch.float32):
    """The outputs of these lengths, and of what is left of `x` token by token."""
    state = mixer.init_state(len(x), x.shape[1], x.device, dtype)
    pieces = x.split((*lengths, *(1,) * (x.shape[1] - sum(lengths))), dim=1)
    outputs = []
    for piece in pieces:
        y, state = mixer.prefill(piece, state)
        outputs.append(y)
    return torch.cat(outputs, dim=1), state


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_token_by_token_is_forward(name, options):
    mixer, x = noisy(mixer_of(name, WIDTH, **options)).double(), torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    expected = mixer(x).detach()
    for lengths in ((), (0,), (1,), (13,), (5, 10), (LENGTH,)):
        found, _ = in_pieces(mixer, x, lengths, torch.float64)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MIXERS)
def test_the_readme_has_the_parameters_of_a_model_and_its_state(name):
    readme = (CONF.parent / "mixers" / "README.md").read_text()
    (row,) = (line for line in readme.splitlines() if line.startswith(f"| `{name}` |"))
    model = mixerlab.build_model("task=icr", f"mixer={name}")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    state = sum(block.mixer.state_size(128) for block in model.blocks)
    assert row.endswith(f"| {parameters:,} | {state:,} |")


class NothingOnTheHost(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function._overloadpacket not in (torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero)
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("name", MIXERS)
def test_a_graph_can_capture_a_step(name):
    """Nothing depends on values, and the state stays where it is."""
    mixer = mixer_of(name, WIDTH)
    state = mixer.init_state(2, LENGTH, CPU, torch.float32)
    before = dict(state)
    with NothingOnTheHost():
        _, state = mixer.prefill(torch.randn(2, 1, WIDTH), state)
    assert state.keys() == before.keys() and all(state[key] is before[key] for key in state)
    with NothingOnTheHost(), pytest.raises(AssertionError):
        state[min(state)].sum().item()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MIXERS)
def test_in_bfloat16_it_is_as_near_to_float32_as_forward_is(name, device):
    """Both round to 8 bits in the same places but for the order of sums, whose rounding adds at most as much again."""
    mixer, x = noisy(mixer_of(name, 128)).to(device), torch.randn(2, 65, 128, device=device)
    with torch.no_grad():
        exact = mixer(x)
        with torch.autocast(device, torch.bfloat16):
            lowered = mixer(x).float()
            stepped, state = in_pieces(mixer, x, (33,), torch.bfloat16)
    assert {state[key].dtype for key in ("k", "v", "tail") if key in state} <= {torch.bfloat16}
    off = (lowered - exact).norm() / exact.norm()
    assert (stepped.float() - exact).norm() / exact.norm() < 2 * off


class Scaled(ProjectedMixer):
    input_projections = ("i_proj",)

    def __init__(self):
        super().__init__()
        self.i_proj, self.o_proj = nn.Linear(WIDTH, 5), nn.Linear(5, WIDTH)

    def mix(self, projected):
        return projected.cumsum(dim=1)


class Doubled(Scaled):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize("make", [Cumulated, Scaled, Doubled])
def test_a_mixer_without_a_state_computes_the_prefix_again(make):
    mixer, x = make(), torch.randn(2, 9, WIDTH)
    for lengths in ((), (0, 1), (4,)):
        torch.testing.assert_close(in_pieces(mixer, x, lengths)[0], mixer(x).detach())
