"""The auto-encoder's decoder, and scored positions; `test_stream` has the language model."""

import torch
import torch.nn.functional as F
from torch import nn

from mixerlab.mixers.attn import Attention
from mixerlab.models.auto_encoder import AutoEncoder
from mixerlab.models.stream import ResidualStream

WIDTH, VOCAB, LENGTH = 128, 16, 32


def test_the_auto_encoder_decodes_only_the_last_position():
    """The decoder adds the encoder's last vector to each row of the position table; then twice norm, linear, GELU."""
    model = AutoEncoder(VOCAB, LENGTH, WIDTH, 2, lambda: Attention(WIDTH)).double().requires_grad_(False)
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
    for scored in (slice(None), slice(5, 9)):
        torch.testing.assert_close(model(tokens, scored), expected[:, scored])
