"""The models, and the residual stream through them, against plain PyTorch in float64; and on kernels, as on a GPU."""

import pytest
import torch
import torch.nn.functional as F
from every_mixer import mixer_of, prefer_kernels
from formulas import assert_same_with_gradients, plain_norm
from torch import nn

from mixerlab.mixers.attn import Attention
from mixerlab.mixers.base import SequenceMixer
from mixerlab.models.auto_encoder import AutoEncoder
from mixerlab.models.language_model import LanguageModel
from mixerlab.models.stream import ResidualStream

WIDTH, LENGTH = 32, 19
MIXERS = ("attn", "parallax", "gdn", "mamba", "mesa")


class Average(SequenceMixer):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return self.scale * x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]


def mixer_called(name):
    return Average() if name == "plain" else mixer_of(name, WIDTH)


def swiglu(x, mlp):
    return (F.silu(x @ mlp.w1.weight.T) * (x @ mlp.w2.weight.T)) @ mlp.w3.weight.T


def plain_block(block, x, scored):
    x = (x + block.mixer(plain_norm(x, block.mixer_norm.weight)))[:, scored]
    return x + swiglu(plain_norm(x, block.mlp_norm.weight), block.mlp)


def random_gains(model):
    for module in model.modules():
        if isinstance(module, nn.RMSNorm):
            nn.init.normal_(module.weight)


@pytest.mark.parametrize(
    ("n_layers", "scored", "cap", "tied"),
    [(1, slice(3, 7), None, False), (3, slice(-1, None), None, True), (3, slice(None), 2.0, False)],
)
@pytest.mark.parametrize("name", [*MIXERS, "plain"])
def test_a_model_is_blocks_of_the_textbook(name, n_layers, scored, cap, tied):
    options = {"tie_embeddings": tied, "logit_softcap": cap}
    model = LanguageModel(9, WIDTH, n_layers, lambda: mixer_called(name), **options).double()
    assert ("head.weight" in dict(model.named_parameters())) != tied
    random_gains(model)
    tokens = torch.randint(9, (2, LENGTH))
    x = model.embedding(tokens)
    for number, block in enumerate(model.blocks):
        x = plain_block(block, x, scored if number == n_layers - 1 else slice(None))
    head = model.embedding.weight if tied else model.head.weight
    expected = plain_norm(x, model.norm.weight) @ head.T + model.head.bias
    expected = cap * (expected / cap).tanh() if cap else expected
    assert_same_with_gradients(model(tokens, scored), expected, list(model.parameters()))


@pytest.mark.parametrize(
    "place", ["embedding", "blocks.0.mlp_norm", "blocks.1.mlp.w2", "blocks.0.mixer.v_proj", "norm", "head"]
)
def test_what_a_hook_returns_takes_the_place_of_the_output(place):
    model = LanguageModel(9, WIDTH, 2, lambda: Attention(WIDTH, qk_norm=False))
    tokens = torch.randint(9, (2, LENGTH))
    before = model(tokens)
    model.get_submodule(place).register_forward_hook(lambda module, inputs, output: torch.zeros_like(output))
    assert not torch.allclose(model(tokens), before)


class Adapted(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


@pytest.mark.parametrize("place", ["blocks.1.mlp.w2", "blocks.0.mixer.v_proj", "blocks.1.mixer.o_proj", "head"])
def test_a_layer_with_a_forward_of_its_own_is_called(place):
    model = LanguageModel(9, WIDTH, 2, lambda: Attention(WIDTH, qk_norm=False))
    tokens = torch.randint(9, (2, LENGTH))
    before = model(tokens)
    model.get_submodule(place).__class__ = Adapted
    assert not torch.allclose(model(tokens), before)


def test_the_auto_encoder_decodes_only_the_last_position():
    """The decoder adds the encoder's last vector to each row of the position table; then twice norm, linear, GELU."""
    model = AutoEncoder(9, LENGTH, WIDTH, 2, lambda: Attention(WIDTH)).double().requires_grad_(False)
    tokens = torch.randint(9, (2, LENGTH))
    encoded = model.blocks(ResidualStream(model.embedding(tokens))).value()  # of all positions
    x = encoded[:, -1:] + model.positions
    for layer in model.decoder:
        nn.init.normal_(layer.norm.weight)
        nn.init.normal_(layer.linear.bias)
        x = layer.linear(F.rms_norm(x, (WIDTH,), layer.norm.weight, 1e-5))
        x = x * (1 + (x / 2**0.5).erf()) / 2
    expected = model.head(F.rms_norm(x, (WIDTH,), model.norm.weight, 1e-5))
    assert expected.shape == (2, LENGTH, 9)
    for scored in (slice(None), slice(5, 9)):
        torch.testing.assert_close(model(tokens, scored), expected[:, scored])


def logits_and_gradients(kind, n_layers, vocabulary, scored, qk_norm):
    torch.manual_seed(0)
    sizes = (9, 16) if kind is AutoEncoder else (16,)
    model = kind(vocabulary, *sizes, n_layers, lambda: Attention(16, num_heads=2, qk_norm=qk_norm))
    logits = model(torch.randint(vocabulary, (2, 9)), scored)
    return [logits.detach(), *torch.autograd.grad(logits.square().sum(), list(model.parameters()))]


@pytest.mark.sampled(2)
@pytest.mark.skipif(torch.cuda.is_available(), reason="there kernels are compiled, for tensors on the GPU")
@pytest.mark.parametrize("kind", [LanguageModel, AutoEncoder])
@pytest.mark.parametrize(
    ("n_layers", "vocabulary", "scored", "qk_norm"),
    [(1, 40, slice(None), False), (2, 7, slice(2, 4), True)],
)
def test_models_on_the_kernels_equal_the_reference(monkeypatch, kind, n_layers, vocabulary, scored, qk_norm):
    expected = logits_and_gradients(kind, n_layers, vocabulary, scored, qk_norm)
    asked = prefer_kernels(monkeypatch)
    actual = logits_and_gradients(kind, n_layers, vocabulary, scored, qk_norm)
    assert "mixerlab.kernels.fused.rms_norm" in asked
    for one, other in zip(actual, expected, strict=True):
        assert (one - other).norm() < 5e-6 * other.norm()
