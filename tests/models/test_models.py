"""The two models of the benchmark: tied weights, the decoder, scored positions."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mixerlab.mixers.attn import Attention
from mixerlab.models.auto_encoder import AutoEncoder
from mixerlab.models.language_model import LanguageModel
from mixerlab.models.stream import ResidualStream
from mixerlab.training.population import Population, seeded

WIDTH, VOCAB, LENGTH = 128, 16, 32


def auto_encoder():
    return AutoEncoder(VOCAB, LENGTH, WIDTH, 2, lambda: Attention(WIDTH, num_heads=2, qk_norm=False))


def test_tied_embeddings_and_capped_logits():
    """The embedding is the head's weight and starts as a linear weight; the gradients of both uses add up."""

    def make():
        keys = {"linear_std": "fan_in", "tie_embeddings": True, "logit_softcap": 2.0}
        return LanguageModel(VOCAB, WIDTH, 1, lambda: Attention(WIDTH), **keys)

    population, tokens = Population(make, (0, 1)), torch.randint(VOCAB, (2, 3, LENGTH))
    logits = population(tokens)
    logits[1].square().sum().backward()
    with seeded(1):
        model = make()
    assert "head.weight" not in dict(model.named_parameters())
    assert model.embedding.weight.std().item() == pytest.approx(WIDTH**-0.5, rel=0.1)
    x = model.blocks(ResidualStream(F.embedding(tokens[1], model.embedding.weight))).value()
    plain = F.linear(F.rms_norm(x, (WIDTH,), model.norm.weight, 1e-5), model.embedding.weight, model.head.bias)
    torch.testing.assert_close(logits[1], 2 * (plain / 2).tanh(), rtol=1e-4, atol=1e-5)
    (2 * (plain / 2).tanh()).square().sum().backward()
    (slot,) = (slot for slot in population.layout.slots if slot.name == "embedding.weight")
    gradient = population.parameters_by_replica.grad[1, slot.start : slot.stop].view(slot.shape)
    torch.testing.assert_close(gradient, model.embedding.weight.grad, rtol=1e-4, atol=1e-4)


def test_the_auto_encoder_decodes_only_the_last_position():
    """The decoder adds the encoder's last vector to each row of the position table; then twice norm, linear, GELU."""
    model = auto_encoder().double().requires_grad_(False)
    tokens = torch.randint(VOCAB, (2, LENGTH))
    encoded = model.blocks(ResidualStream(model.embedding(tokens))).value()  # of all positions
    x = encoded[:, -1:] + model.positions
    for layer in model.decoder:
        nn.init.normal_(layer.norm.weight)
        nn.init.normal_(layer.linear.bias)
        x = layer.linear(F.rms_norm(x, (WIDTH,), layer.norm.weight, 1e-5))
        x = x * (1 + (x / 2**0.5).erf()) / 2
    expected = model.head(F.rms_norm(x, (WIDTH,), model.norm.weight, 1e-5))
    assert expected.shape == (2, LENGTH, VOCAB)
    torch.testing.assert_close(model(tokens), expected)


def test_logits_of_scored_positions_are_those_of_all_positions():
    model = auto_encoder().double()
    tokens = torch.randint(VOCAB, (2, LENGTH))
    torch.testing.assert_close(model(tokens, slice(5, 9)), model(tokens)[:, 5:9])
