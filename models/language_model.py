"""The language model of the benchmark: blocks of mixer and SwiGLU between an embedding and a head."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mixerlab.kernels.common.autocast import default_dtype
from mixerlab.mixers.base import NORM_EPS, SequenceMixer
from mixerlab.mixers.cache import State
from mixerlab.models.block import Blocks
from mixerlab.models.initial_values import LinearStd, initialise
from mixerlab.models.stream import ALL, ResidualStream


class LanguageModel(nn.Module):
    """Token ids, int64 `[B, T]`, to logits `[B, S, V]` of the positions `scored`.

    Embedding, blocks, RMSNorm, and a head with a bias.

    Args:
        vocab_size: V.
        d_model: width.
        n_layers: how many blocks.
        make_mixer: makes one block's mixer, `[B, T, d_model]` to the same; called once for each block.
        d_ff: inner width of the MLPs; None: that of `inner_width`.
        linear_std: of the initial linear weights (`initialise`).
        tie_embeddings: the embedding is the head's weight too, and starts as a linear weight does (N(0, 0.02) if
            `linear_std` is None). To an optimizer it is a table, whatever `optimizer.head` says.
        logit_softcap: c of `c tanh(logits / c)`, in place of the logits (Gemma 2); None: they are as they come.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        n_layers: int,
        make_mixer: Callable[[], SequenceMixer],
        d_ff: int | None = None,
        linear_std: LinearStd = None,
        tie_embeddings: bool = False,
        logit_softcap: float | None = None,
    ):
        super().__init__()
        self.logit_softcap = logit_softcap
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.blocks = Blocks(d_model, n_layers, make_mixer, d_ff)
        self.norm = nn.RMSNorm(d_model, eps=NORM_EPS)
        self.head = nn.Linear(d_model, vocab_size)
        if tie_embeddings:
            self.head.weight = self.embedding.weight
        initialise(self, linear_std)

    def forward(self, tokens: Tensor, scored: slice = ALL) -> Tensor:
        x = ResidualStream.embedded(tokens, self.embedding)
        return self._logits(self.blocks(x, scored))

    def init_state(self, batch: int, max_len: int) -> list[State]:
        """The state of each mixer before the first of at most `max_len` tokens; call it under the autocast of steps."""
        weight = self.head.weight
        mixers: list[Any] = [block.mixer for block in self.blocks]
        return [mixer.init_state(batch, max_len, weight.device, default_dtype(weight)) for mixer in mixers]

    @torch.no_grad()
    def prefill(self, tokens: Tensor, states: list[State]) -> tuple[Tensor, list[State]]:
        """The logits `[B, T, V]` of the next tokens, int64 `[B, T]`, and the states behind them (`SequenceMixer`)."""
        x, states = self.blocks.prefill(ResidualStream.embedded(tokens, self.embedding), states)
        return self._logits(x), states

    def _logits(self, x: ResidualStream) -> Tensor:
        logits, cap = x.normed_linear(self.norm, self.head), self.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)
