"""What `mixerlab check` asks beside outputs: replicas, bfloat16, lengths, gradients; and what it lets pass."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mixerlab.checks.contract import WIDTH, check_everything, check_mixer, check_replicas, check_state
from mixerlab.mixers.base import SequenceMixer
from mixerlab.records.errors import RefusedMixer


class Mixer(SequenceMixer):
    def __init__(self, d_model=WIDTH):
        super().__init__()
        self.q, self.k, self.v, self.a, self.o = (nn.Linear(d_model, d_model, bias=False) for _ in range(5))

    def state_size(self, seq_len):
        return 1


class WrongInBfloat16(Mixer):
    """Linear attention with a decay, right in float32. Under autocast it has `flaw` in its tensor `where`."""

    def __init__(self, where=None, flaw=None):
        super().__init__()
        self.where, self.flaw = where, flaw

    def flawed(self, name, x):
        if name != self.where or not torch.is_autocast_enabled("cpu"):
            return x
        match self.flaw:
            case "no gradient":
                return x.detach()
            case "a gradient that is a fifth too large":
                return 1.2 * x - 0.2 * x.detach()
            case "an output of another sign":
                return -x
            case "an infinite gradient in some sequences":
                root = torch.where(x[:, :1, :1] > 0.5, x - x.detach(), 1).sqrt()
                return x + root - root.detach()

    def forward(self, x):
        total = F.logsigmoid(self.flawed("a", self.a(x)).float() + 3).cumsum(1)
        q, k, v = self.flawed("q", self.q(x)), self.k(x), self.flawed("v", self.v(x))
        scores = ((q * total.exp()).float() @ (k * (-total).exp()).float().mT).tril()
        return self.flawed("o", self.o(scores @ v.float()))


@pytest.mark.parametrize(
    ("where", "flaw", "message"),
    [
        (None, None, None),
        ("a", "no gradient", "gradient of mixer.a.weight under bf16 autocast is 100% off"),
        ("v", "a gradient that is a fifth too large", "gradient of mixer.v.weight under bf16 autocast is 20% off"),
        ("o", "an output of another sign", "the output under bf16 autocast is "),
    ],
)
def test_what_is_far_off_in_bfloat16_is_said(where, flaw, message, caplog):
    for seed in range(1 if flaw else 3):
        torch.manual_seed(seed)
        check_replicas(lambda: WrongInBfloat16(where, flaw))
    assert bool(caplog.messages) == (message is not None)
    assert message is None or message in "".join(caplog.messages)


def test_a_gradient_that_is_not_finite_in_bfloat16_is_refused():
    with pytest.raises(RefusedMixer, match=r"gradient of .* is not finite \(bf16 autocast: True\)"):
        check_replicas(lambda: WrongInBfloat16("v", "an infinite gradient in some sequences"))


@torch.library.custom_op("tests::mix_replicas", mutates_args=())
def mix_replicas(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


mix_replicas.register_autograd(lambda ctx, gradient: gradient)
mix_replicas.register_vmap(lambda info, dims, x: (x.movedim(dims[0], 0).roll(1, dims=0), 0))


def test_a_mixer_that_mixes_replicas_is_refused():
    """As a kernel with a wrong stride would, under vmap."""

    class Mixes(Mixer):
        def forward(self, x):
            return mix_replicas(self.o(x))

    with pytest.raises(RefusedMixer, match=r"the output of a replica is .* off beside others"):
        check_replicas(Mixes)


class Convolved(SequenceMixer):
    """Under autocast, vmap refuses its bias, which stays float32; a loop takes it."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(WIDTH, WIDTH, 3, groups=WIDTH)

    def forward(self, x):
        return self.convolution(F.pad(x.mT, (2, 0))).mT

    def state_size(self, seq_len):
        return 2 * WIDTH


def test_a_mixer_that_vmap_refuses_keeps_the_contract():
    """On a CPU a run is float32, and computes this one side by side."""
    assert check_mixer(Convolved).why.startswith("in bfloat16, replicas compute one after another (vmap refuses ")


class Sums(Mixer):
    """A sum, with a state of its own, which may be `flawed`, or count its `elements` wrongly."""

    def __init__(self, flaw=None, elements=WIDTH):
        super().__init__()
        self.flaw, self.elements = flaw, elements

    def forward(self, x):
        return self.o(x.cumsum(dim=1))

    def init_state(self, batch, max_len, device, dtype):
        state = torch.zeros(batch, 1, WIDTH, device=device, dtype=dtype)
        return state if self.flaw == "no dict" else {"sum": state}

    def prefill(self, x, state):
        if self.flaw == "begins anew" and x.shape[1] > 1:
            state["sum"].zero_()
        y = (state["sum"] + x.cumsum(dim=1)) * (1.1 if self.flaw == "a wrong step" and x.shape[1] == 1 else 1)
        state["sum"].copy_(y[:, -1:] * 0.9 if self.flaw == "forgets" else y[:, -1:])
        match self.flaw:
            case "the last output only":
                return self.o(y[:, -1:]), state
            case "another dtype":
                return self.o(y).double(), state
            case "no state":
                return self.o(y)
        return self.o(y), state

    def state_size(self, seq_len):
        return self.elements


@pytest.mark.parametrize(
    ("flaw", "message"),
    [
        ("forgets", "what prefill of 5, 3, 1, 1, ... tokens gives, beside forward, first at token 6: off by"),
        ("begins anew", "first at token 6: off by"),
        ("a wrong step", "first at token 9: off by"),
        ("the last output only", r"prefill gives outputs \[2, 1, 32\] of torch.float32 for tokens \[2, 5, 32\] of"),
        ("another dtype", r"prefill gives outputs \[2, 5, 32\] of torch.float64 for"),
        ("no state", "prefill must give two things"),
        ("no dict", "init_state must give a state that is a dict of tensors"),
    ],
)
def test_a_state_that_is_wrong_is_refused(flaw, message):
    with pytest.raises(RefusedMixer, match=message):
        check_state(Sums(flaw))


def test_the_state_of_a_mixer_of_ones_own():
    check_state(Sums())
    with pytest.raises(RefusedMixer, match=r"state_size\(17\) is 5, and init_state gives 32 elements"):
        check_state(Sums(elements=5))


class Unsized(SequenceMixer):
    def __init__(self):
        super().__init__()
        self.o = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.o(x.cumsum(dim=1))


def test_a_mixer_without_state_size_is_told_to_write_it():
    with pytest.raises(ValueError, match=r"^Unsized has no state_size: write state_size\(self, seq_len\)"):
        check_everything(Unsized)
