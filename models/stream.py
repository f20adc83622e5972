"""The residual stream of a model: an addition and the norm behind it are one launch, across the borders of blocks.

What is fused does not call the modules whose weights it reads. So a module with hooks is called instead, which gives
the same within rounding. Only inside our mixers do some hooks never fire: those on norms of heads, rotary embeddings,
convolutions and the small projections of Mamba and KDA.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from mixerlab.kernels.common.autocast import default_dtype
from mixerlab.kernels.fused.embedding import embedding
from mixerlab.kernels.fused.linear import linear
from mixerlab.kernels.fused.rms_norm import add_rms_norm
from mixerlab.mixers.projected import must_be_called

ALL = slice(None)  # positions


@dataclass(frozen=True, eq=False)  # tensor equality has no single truth value
class ResidualStream:
    """What the layers of a model read and add to: `[B, T, d_model]`, the sum `total + update`.

    The next norm adds the two up.

    Args:
        total: `[B, T, d_model]`.
        update: what the last layer gave, of the same shape; None if nothing has been added.
    """

    total: Tensor
    update: Tensor | None = None

    @classmethod
    def embedded(cls, tokens: Tensor, layer: nn.Embedding) -> Self:
        """The stream at the start of a model: `layer(tokens)`, for token ids `[B, T]`, int64."""
        return cls(layer(tokens) if must_be_called(layer) else embedding(tokens, layer.weight))

    def add(self, layer: Callable[[Tensor], Tensor], norm: nn.RMSNorm) -> Self:
        """`x + layer(norm(x))`, for a layer from `[B, T, d_model]` to the same.

        Raises:
            ValueError: the layer gives something else.
        """
        total, normed = self._add_up_and_norm(norm)
        update = layer(normed)
        if not isinstance(update, Tensor):
            raise ValueError(
                f"{type(layer).__name__} gives a {type(update).__name__}: it must give a tensor [B, T, d_model]"
            )
        if update.shape != normed.shape:
            raise ValueError(
                f"{type(layer).__name__} gives the shape {tuple(update.shape)} for an input of {tuple(normed.shape)}:"
                " they must be the same"
            )
        # Autocast gives bfloat16 for float32.
        wanted = norm.weight.dtype
        if update.dtype not in (wanted, torch.float32, torch.bfloat16, torch.float16):
            raise ValueError(f"{type(layer).__name__} gives {update.dtype} for {wanted}: they must be equal")
        return type(self)(total, update)

    def at(self, positions: slice) -> Self:
        """The stream of these positions only."""
        return type(self)(self.total[:, positions], None if self.update is None else self.update[:, positions])

    def value(self) -> Tensor:
        """The stream as a tensor."""
        return self.total if self.update is None else self.total + self.update

    def normed_linear(self, norm: nn.RMSNorm, layer: nn.Linear) -> Tensor:
        """`layer(norm(x))`, the end of a model: `[B, T, layer.out_features]`."""
        _, normed = self._add_up_and_norm(norm)
        return layer(normed) if must_be_called(layer) else linear(normed, layer.weight, layer.bias)

    def _add_up_and_norm(self, norm: nn.RMSNorm) -> tuple[Tensor, Tensor]:
        """`x` and `norm(x)`."""
        if must_be_called(norm):
            total = self.value()
            return total, norm(total).to(default_dtype(total))  # the layer gets the dtype that the operator gives it
        assert norm.eps is not None, "PyTorch's default depends on the dtype of the input"
        return add_rms_norm(self.total, self.update, norm.weight, norm.eps)
