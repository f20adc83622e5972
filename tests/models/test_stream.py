"""The residual stream against plain PyTorch in float64."""

import pytest
import torch
import torch.nn.functional as F
from every_mixer import mixer_of
from formulas import attention, plain_norm, rotary
from torch import nn

from mixerlab.mixers.attn import Attention
from mixerlab.mixers.base import SequenceMixer
from mixerlab.models.block import Block
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


def layer_of_attention(x, mixer):
    q, k, v = ((x @ layer.weight.T).unflatten(-1, (2, -1)) for layer in (mixer.q_proj, mixer.k_proj, mixer.v_proj))
    half = q.shape[-1] // 2
    frequency = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    return attention(rotary(q, frequency), rotary(k, frequency), v).flatten(2) @ mixer.o_proj.weight.T


def swiglu(x, mlp):
    return (F.silu(x @ mlp.w1.weight.T) * (x @ mlp.w2.weight.T)) @ mlp.w3.weight.T


def plain_block(block, x, mix, scored=slice(None)):
    x = (x + mix(plain_norm(x, block.mixer_norm.weight)))[:, scored]
    return x + swiglu(plain_norm(x, block.mlp_norm.weight), block.mlp)


def random_gains(model):
    for module in model.modules():
        if isinstance(module, nn.RMSNorm):
            nn.init.normal_(module.weight)


def compare(actual, expected, tensors):
    torch.testing.assert_close(actual, expected)
    weight = torch.randn_like(actual)
    gradients = (torch.autograd.grad((y * weight).sum(), tensors, retain_graph=True) for y in (actual, expected))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("scored", [slice(None), slice(3, 7), slice(-1, None)])
def test_a_block_of_attention_is_its_formula(scored):
    block = Block(WIDTH, Attention(WIDTH, qk_norm=False)).double()
    random_gains(block)
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64, requires_grad=True)
    expected = plain_block(block, x, lambda x: layer_of_attention(x, block.mixer), scored)
    compare(block(ResidualStream(x), scored).value(), expected, [x, *block.parameters()])


@pytest.mark.parametrize("n_layers", [1, 3])
@pytest.mark.parametrize("name", [*MIXERS, "plain"])
def test_a_model_is_blocks_of_the_textbook(name, n_layers):
    model = LanguageModel(9, WIDTH, n_layers, lambda: mixer_called(name)).double()
    random_gains(model)
    tokens = torch.randint(9, (2, LENGTH))
    x = model.embedding(tokens)
    for number, block in enumerate(model.blocks):
        x = plain_block(block, x, block.mixer, slice(2, None) if number == n_layers - 1 else slice(None))
    expected = plain_norm(x, model.norm.weight) @ model.head.weight.T + model.head.bias
    compare(model(tokens, slice(2, None)), expected, list(model.parameters()))


@pytest.mark.parametrize(
    "place", ["embedding", "blocks.0.mlp_norm", "blocks.1.mlp.w2", "blocks.0.mixer.v_proj", "norm", "head"]
)
def test_what_a_hook_returns_takes_the_place_of_the_output(place):
    model = LanguageModel(9, WIDTH, 2, lambda: Attention(WIDTH, qk_norm=False))
    tokens = torch.randint(9, (2, LENGTH))
    before = model(tokens)
    model.get_submodule(place).register_forward_hook(lambda module, inputs, output: torch.zeros_like(output))
    assert not torch.allclose(model(tokens), before)
