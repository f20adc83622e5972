"""The auto-encoder of the benchmark's compression task: a sequence rebuilt from the vector of its last position."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixerlab.mixers.base import NORM_EPS, SequenceMixer
from mixerlab.models.block import Blocks
from mixerlab.models.initial_values import initialise
from mixerlab.models.stream import ALL, ResidualStream

LAST = slice(-1, None)  # position
LINEAR_STD = 0.02  # of the initial weights, as in mad-lab


class DecoderLayer(nn.Module):
    """Norm, linear with a bias, GELU, position by position: `[..., d_model]` to the same."""

    def __init__(self, d_model: int):
        super().__init__()
        self.norm = nn.RMSNorm(d_model, eps=NORM_EPS)
        self.linear = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(ResidualStream(x).normed_linear(self.norm, self.linear))


class AutoEncoder(nn.Module):
    """Token ids, int64 `[B, T]`, to logits `[B, S, V]` of the positions `scored`, from the encoder's last vector only.

    The decoder, two layers, sees that vector plus a fixed table of positions. Linear weights start from N(0, 0.02), and
    biases at zero. A mixer's linear parameters that are marked (`keep_initial_values`), and its embeddings, keep their
    values unless `redraw_all`, which is what mad-lab does.
    """

    positions: Tensor

    def __init__(
        self,
        vocab_size: int,
        seq_len: int,
        d_model: int,
        n_layers: int,
        make_mixer: Callable[[], SequenceMixer],
        d_ff: int | None = None,
        redraw_all: bool = False,
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.blocks = Blocks(d_model, n_layers, make_mixer, d_ff)
        self.decoder = nn.Sequential(DecoderLayer(d_model), DecoderLayer(d_model))
        self.norm = nn.RMSNorm(d_model, eps=NORM_EPS)
        self.head = nn.Linear(d_model, vocab_size)
        self.register_buffer("positions", position_table(seq_len, d_model), persistent=False)
        initialise(self, LINEAR_STD, redraw_all)

    def forward(self, tokens: Tensor, scored: slice = ALL) -> Tensor:
        x = ResidualStream.embedded(tokens, self.embedding)
        encoded = self.blocks(x, LAST).value()  # [B, 1, d_model]
        x = self.decoder(encoded + self.positions[scored])
        return ResidualStream(x).normed_linear(self.norm, self.head)


def position_table(seq_len: int, d_model: int) -> Tensor:
    """Sines then cosines of position times 10000^(-j / (d_model/2 - 1)); float32 `[seq_len, d_model]`.

    An odd width has a sine more than cosines.
    """
    half = (d_model + 1) // 2
    frequency = 10_000.0 ** (-torch.arange(half) / max(half - 1, 1))
    angles = torch.arange(seq_len)[:, None] * frequency
    return torch.cat((angles.sin(), angles.cos()), dim=1)[:, :d_model]
