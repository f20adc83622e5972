"""A mixer of a layer that someone else has written."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from mixerlab.mixers.base import SequenceMixer


class Wrapped(SequenceMixer):
    """A layer from `[B, T, d_model]` to the same, or to a tuple that begins with that.

    Args:
        layer: the layer, causal.
        state: how many elements it carries from token to token, or a function that gives it for a number of tokens.
        multiple_of: of which lengths are multiples that it takes, such as its chunk. Zeros follow the others, and what
            it gives for them is dropped; a causal layer gives nothing else for the tokens before.
    """

    def __init__(self, layer: nn.Module, state: int | Callable[[int], int], multiple_of: int = 1):
        super().__init__()
        self.layer, self.state, self.multiple_of = layer, state, multiple_of

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(F.pad(x, (0, 0, 0, -x.shape[1] % self.multiple_of)))
        return (y[0] if isinstance(y, tuple) else y)[:, : x.shape[1]]

    def state_size(self, seq_len: int) -> int:
        return self.state(seq_len) if callable(self.state) else self.state
