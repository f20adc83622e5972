"""What `mixerlab check` asks beside outputs: replicas, bfloat16, lengths, gradients; and what it lets pass."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mixerlab.checks.contract import (
    WIDTH,
    check_declarations,
    check_everything,
    check_gradients,
    check_lengths,
    check_mixer,
    check_replicas,
)
from mixerlab.mixers.base import SequenceMixer
from mixerlab.mixers.projected import ProjectedMixer
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
            case "an infinite gradient in some sequences":
                root = torch.where(x[:, :1, :1] > 0.5, x - x.detach(), 1).sqrt()
                return x + root - root.detach()

    def forward(self, x):
        total = F.logsigmoid(self.flawed("a", self.a(x)).float() + 3).cumsum(1)
        q, k, v = self.flawed("q", self.q(x)), self.k(x), self.flawed("v", self.v(x))
        scores = ((q * total.exp()).float() @ (k * (-total).exp()).float().mT).tril()
        return self.o(scores @ v.float())


@pytest.mark.parametrize(
    ("where", "flaw", "message"),
    [
        (None, None, None),
        ("q", "no gradient", "gradient of mixer.q.weight under bf16 autocast is 1.0e.00 off"),
        ("a", "no gradient", "gradient of mixer.a.weight under bf16 autocast is 1.0e.00 off"),
        ("v", "a gradient that is a fifth too large", "gradient of mixer.v.weight under bf16 autocast is 2.0e-01 off"),
        ("v", "an infinite gradient in some sequences", r"gradient of .* is not finite \(bf16 autocast: True\)"),
    ],
)
def test_a_wrong_gradient_in_bfloat16(where, flaw, message):
    for seed in range(5):
        torch.manual_seed(seed)
        if message is None:
            check_replicas(lambda: WrongInBfloat16(where, flaw))
            continue
        with pytest.raises(RefusedMixer, match=message):
            check_replicas(lambda: WrongInBfloat16(where, flaw))


def test_a_gradient_that_is_zero_but_for_rounding():
    """Under a softmax a bias of the keys changes nothing, so its gradient has no size to measure an error by."""

    class WithKeyBias(Mixer):
        def __init__(self):
            super().__init__()
            self.k = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return self.o(F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), is_causal=True))

    torch.manual_seed(0)
    check_replicas(WithKeyBias)


def test_a_mixer_that_mixes_replicas_is_refused(monkeypatch):
    """As a kernel with a wrong stride would, under vmap."""

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, gradient):
            return gradient

        @staticmethod
        def vmap(info, dims, x):
            return x.movedim(dims[0], 0).roll(1, dims=0), 0

    class Mixes(Mixer):
        def forward(self, x):
            return Scale.apply(self.o(x))

    torch.manual_seed(0)
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


class Recurrent(Convolved):
    def __init__(self):
        super().__init__()
        self.convolution = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return self.convolution(x)[0]


@pytest.mark.parametrize("make", [Convolved, Recurrent])
def test_a_mixer_that_vmap_refuses_keeps_the_contract(make):
    torch.manual_seed(0)
    assert "one after another" in check_mixer(make).why


class Chunked(Mixer):
    """A parameter that only sequences of more than a chunk use."""

    def forward(self, x):
        chunks = F.pad(self.v(x), (0, 0, 0, -x.shape[1] % 64)).unflatten(1, (-1, 64))
        before = F.pad(chunks.sum(2).cumsum(1)[:, :-1], (0, 0, 1, 0))
        y = chunks.cumsum(2) + (self.a(torch.tanh(before))[:, :, None] if chunks.shape[1] > 1 else 0)
        return self.o(y.flatten(1, 2)[:, : x.shape[1]])


def test_gradients_are_those_of_a_sequence_longer_than_a_chunk():
    torch.manual_seed(0)
    mixer = Chunked()
    del mixer.q, mixer.k
    check_gradients(mixer)


class Short(SequenceMixer):
    """Has a longest sequence, and says so in `state_size`."""

    def __init__(self, longest):
        super().__init__()
        self.place, self.out = nn.Parameter(torch.ones(longest, 1)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.out(x * self.place[: x.shape[1]])

    def state_size(self, seq_len):
        if seq_len > len(self.place):
            raise ValueError(f"at most {len(self.place)} tokens")
        return 1


@pytest.mark.parametrize("longest", [65, 100, 17])
def test_a_longest_sequence_is_no_breach(longest):
    check_lengths(Short(longest))
    check_declarations(Short(longest))


def test_a_state_size_that_falls_or_is_no_number():
    for size in (lambda seq_len: 200 - seq_len, lambda seq_len: 0, lambda seq_len: 1.5):
        mixer = Short(200)
        mixer.state_size = size
        with pytest.raises(RefusedMixer, match="it must give positive integers that do not fall"):
            check_declarations(mixer)


def test_a_projection_that_mixes_positions_is_refused():
    """In the first layer it would get the table of a small vocabulary, and not the sequence."""

    class Shifted(ProjectedMixer):
        input_projections = ("v",)

        def __init__(self):
            super().__init__()
            self.v, self.o_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def project(self, x):
            return super().project(x).cumsum(-2)

        def mix(self, projected):
            return projected

        def state_size(self, seq_len):
            return WIDTH

    torch.manual_seed(0)
    with pytest.raises(RefusedMixer, match="in the first layer of a small vocabulary"):
        check_mixer(Shifted)


def test_an_error_of_the_mixer_names_its_line_and_the_width():
    class Fails(Mixer):
        def forward(self, x):
            return self.o(x[..., 1:])

    config = {"name": "fails", "_target_": f"{__name__}.Plain"}
    with pytest.raises(ValueError, match=r"shapes cannot be multiplied.*, in .*forward \(.*\(checked at d_model=32"):
        check_everything(config, "fails", Fails)


class Plain(SequenceMixer):
    def __init__(self, d_model):
        super().__init__()
