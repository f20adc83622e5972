"""The block that both models repeat: a sequence mixer, then a SwiGLU layer, each behind a norm."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from mixerlab.kernels.fused.linear import join_rows
from mixerlab.kernels.fused.mlp import swiglu_mlp
from mixerlab.mixers.base import NORM_EPS, SequenceMixer
from mixerlab.mixers.cache import State
from mixerlab.mixers.projected import must_be_called
from mixerlab.models.stream import ALL, ResidualStream

GRANULE = 16  # of inner widths, which tensor cores take


def inner_width(d_model: int) -> int:
    """8/3 of the outer width (Shazeer 2020), rounded up to `GRANULE`."""
    return GRANULE * math.ceil(int(8 * d_model / 3) / GRANULE)


class SwiGLU(nn.Module):
    """`w3(silu(w1 x) * w2 x)`, no bias; the inner width is `d_ff`, of None that of `inner_width`."""

    input_projections = ("w1", "w2")  # training lays them side by side, where `join_rows` need not copy

    def __init__(self, d_model: int, d_ff: int | None = None):
        super().__init__()
        d_inner = d_ff or inner_width(d_model)
        self.w1 = nn.Linear(d_model, d_inner, bias=False)
        self.w2 = nn.Linear(d_model, d_inner, bias=False)
        self.w3 = nn.Linear(d_inner, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if must_be_called(self.w1) or must_be_called(self.w2) or must_be_called(self.w3):
            return self.w3(F.silu(self.w1(x)) * self.w2(x))
        return swiglu_mlp(x, join_rows(self.w1.weight, self.w2.weight), self.w3.weight)


class Block(nn.Module):
    """`x + mixer(norm(x))`, then `x + mlp(norm(x))`; behind the mixer it goes on with the positions `scored` only."""

    def __init__(self, d_model: int, mixer: SequenceMixer, d_ff: int | None = None):
        super().__init__()
        self.mixer_norm = nn.RMSNorm(d_model, eps=NORM_EPS)
        self.mixer = mixer
        self.mlp_norm = nn.RMSNorm(d_model, eps=NORM_EPS)
        self.mlp = SwiGLU(d_model, d_ff)

    def forward(self, x: ResidualStream, scored: slice = ALL) -> ResidualStream:
        return self._around(self.mixer, x, scored)

    def prefill(self, x: ResidualStream, state: State) -> tuple[ResidualStream, State]:
        """The next positions, and the mixer's state behind them."""

        def mix(normed: Tensor) -> Tensor:
            nonlocal state
            y, state = self.mixer.prefill(normed, state)
            return y

        return self._around(mix, x), state

    def _around(self, mix: Callable[[Tensor], Tensor], x: ResidualStream, scored: slice = ALL) -> ResidualStream:
        x = x.add(mix, norm=self.mixer_norm)  # x + mix(norm(x))
        return x.at(scored).add(self.mlp, norm=self.mlp_norm)  # x + mlp(norm(x))


class Blocks(nn.ModuleList):
    """`n_layers` blocks in a row; the stream goes on with the positions `scored` only.

    Nothing mixes positions after the last mixer, so the last MLP is spared the others.
    """

    def __init__(self, d_model: int, n_layers: int, make_mixer: Callable[[], SequenceMixer], d_ff: int | None = None):
        super().__init__(Block(d_model, make_mixer(), d_ff) for _ in range(n_layers))

    def forward(self, x: ResidualStream, scored: slice = ALL) -> ResidualStream:
        *others, last = self
        for block in others:
            x = block(x)
        return last(x, scored)

    def prefill(self, x: ResidualStream, states: Sequence[State]) -> tuple[ResidualStream, list[State]]:
        """The next positions, and the mixers' states behind them."""
        blocks: list[Any] = list(self)
        after = []
        for block, before in zip(blocks, states, strict=True):
            x, state = block.prefill(x, before)
            after.append(state)
        return x, after
