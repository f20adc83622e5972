"""The language model of the benchmark: blocks of mixer and SwiGLU between an embedding and a head."""

from collections.abc import Callable

from torch import Tensor, nn

from mixerlab.mixers.base import NORM_EPS
from mixerlab.models.block import Blocks
from mixerlab.models.initial_values import initialise
from mixerlab.models.stream import ALL, ResidualStream


class LanguageModel(nn.Module):
    """Token ids, int64 `[B, T]`, to logits `[B, S, V]` of the positions `scored`.

    Embedding, blocks, RMSNorm, and a head with a bias.

    Args:
        vocab_size: V.
        d_model: width.
        n_layers: how many blocks.
        make_mixer: makes one block's mixer, `[B, T, d_model]` to the same; called once for each block.
        linear_std: standard deviation of the initial linear weights; None: PyTorch's, uniform in +-1/sqrt(fan_in).
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        n_layers: int,
        make_mixer: Callable[[], nn.Module],
        linear_std: float | None = None,
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.blocks = Blocks(d_model, n_layers, make_mixer)
        self.norm = nn.RMSNorm(d_model, eps=NORM_EPS)
        self.head = nn.Linear(d_model, vocab_size)
        initialise(self, linear_std)

    def forward(self, tokens: Tensor, scored: slice = ALL) -> Tensor:
        x = ResidualStream.embedded(tokens, self.embedding)
        return self.blocks(x, scored).normed_linear(self.norm, self.head)
