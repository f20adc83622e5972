"""Whole models give the same logits and gradients with the kernels, as on a GPU, and with the reference."""

from functools import partial

import pytest
import torch
from every_mixer import prefer_kernels

from mixerlab.mixers.attn import Attention
from mixerlab.models.auto_encoder import AutoEncoder
from mixerlab.models.language_model import LanguageModel
from mixerlab.models.stream import ALL

WIDTH, LENGTH = 16, 9


def results(kind, n_layers, vocabulary, scored, qk_norm):
    torch.manual_seed(0)
    make_mixer = partial(Attention, WIDTH, num_heads=2, qk_norm=qk_norm)
    sizes = (LENGTH, WIDTH) if kind is AutoEncoder else (WIDTH,)
    model = kind(vocabulary, *sizes, n_layers, make_mixer)
    logits = model(torch.randint(vocabulary, (2, LENGTH)), scored)
    return [logits.detach(), *torch.autograd.grad(logits.square().sum(), list(model.parameters()))]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there kernels are compiled, for tensors on the GPU")
@pytest.mark.parametrize("kind", [LanguageModel, AutoEncoder])
@pytest.mark.parametrize(
    ("n_layers", "vocabulary", "scored", "qk_norm"),
    [(1, 40, ALL, False), (2, 7, slice(2, 4), True)],
)
def test_models_on_the_kernels_equal_the_reference(monkeypatch, kind, n_layers, vocabulary, scored, qk_norm):
    expected = results(kind, n_layers, vocabulary, scored, qk_norm)
    asked = prefer_kernels(monkeypatch)
    actual = results(kind, n_layers, vocabulary, scored, qk_norm)
    assert "mixerlab.kernels.fused.rms_norm" in asked
    for one, other in zip(actual, expected, strict=True):
        assert (one - other).norm() < 5e-6 * other.norm()
