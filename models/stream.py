"""The residual stream of a model. What makes a model fast, apart from its layers, is in this file.

There are two such things. An addition and the norm behind it are one launch. With a small vocabulary, everything up
to the first projection is computed once for each token of the vocabulary, rather than once for each position. A block
sees none of this.

What is fused does not call the modules whose weights it reads. So a module with hooks is left out of it and called,
which gives the same within rounding. Only inside our mixers do some hooks never fire: those on norms of heads, rotary
embeddings, convolutions and the small projections of Mamba and KDA.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from mixerlab.kernels.common.autocast import default_dtype
from mixerlab.kernels.fused.embedding import Embedded, embedding
from mixerlab.kernels.fused.embedding_norm import EmbeddedSum, embedded_add_rms_norm, embedding_rms_norm
from mixerlab.kernels.fused.linear import linear
from mixerlab.kernels.fused.rms_norm import add_rms_norm
from mixerlab.mixers.projected import ProjectedMixer, is_hooked

ALL = slice(None)  # positions


@dataclass(frozen=True, eq=False)  # tensor equality has no single truth value
class ResidualStream:
    """What the layers of a model read and add to: `[B, T, d_model]`, the sum `total + update`.

    The next norm adds the two up. `ResidualStream(x)` makes a stream of a tensor, `embedded` one of token ids.

    Args:
        total: a tensor `[B, T, d_model]`, or rows of a table that have not been looked up yet.
        update: what the last layer gave, of the same shape; None if nothing has been added.
    """

    total: Tensor | Embedded | EmbeddedSum
    update: Tensor | None = None

    @classmethod
    def embedded(cls, tokens: Tensor, embedding: nn.Embedding) -> Self:
        """The stream at the start of a model: `embedding(tokens)`, for token ids `[B, T]`, int64."""
        return cls(embedding(tokens) if is_hooked(embedding) else Embedded(tokens, embedding.weight))

    def add(self, layer: Callable[[Tensor], Tensor], norm: nn.RMSNorm) -> Self:
        """`x + layer(norm(x))`, for a layer from `[B, T, d_model]` to the same.

        Raises:
            ValueError: the layer gives something else.
        """
        total, normed = self._add_up_and_norm(norm)
        update = _apply(layer, normed)
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
        total = self.total.add_up() if isinstance(self.total, EmbeddedSum) else self.total
        return type(self)(total[:, positions], None if self.update is None else self.update[:, positions])

    def value(self) -> Tensor:
        """The stream as a tensor."""
        total = self._total()
        return total if self.update is None else total + self.update

    def normed_linear(self, norm: nn.RMSNorm, layer: nn.Linear) -> Tensor:
        """`layer(norm(x))`, the end of a model: `[B, T, layer.out_features]`."""
        _, normed = self._add_up_and_norm(norm)
        x = normed if isinstance(normed, Tensor) else normed.look_up()
        return layer(x) if is_hooked(layer) else linear(x, layer.weight, layer.bias)

    def _total(self) -> Tensor:
        if isinstance(self.total, Embedded):
            return self.total.look_up()
        return self.total.add_up() if isinstance(self.total, EmbeddedSum) else self.total

    def _add_up_and_norm(self, norm: nn.RMSNorm) -> tuple[Tensor | Embedded | EmbeddedSum, Tensor | Embedded]:
        """`x`, which may still be a sum that the next norm adds up, and `norm(x)`."""
        if is_hooked(norm):
            total = self.value()
            return total, norm(total).to(default_dtype(total))  # the layer gets the dtype that the operators give it
        gain, eps = norm.weight, _eps(norm)
        if isinstance(self.total, Embedded) and self.update is None:
            return embedding_rms_norm(self.total.tokens, self.total.table, gain, eps)
        if isinstance(self.total, Tensor) or self.update is None:
            return add_rms_norm(self._total(), self.update, gain, eps)
        return embedded_add_rms_norm(self.total, self.update, gain, eps)


def _eps(norm: nn.RMSNorm) -> float:
    assert norm.eps is not None, "PyTorch's default depends on the dtype of the input"
    return norm.eps


def _apply(layer: Callable[[Tensor], Tensor], x: Tensor | Embedded) -> Tensor:
    """`layer(x)`. If `x` is a table, a `ProjectedMixer` projects the table, and the products are looked up.

    A mixer that replaces `forward`, as a compiled one does, may do anything with its input: it gets the rows. So does
    one with hooks, on itself or on a layer inside, which are meant for its input and not for a table.
    """
    if isinstance(x, Tensor):
        return layer(x)
    if not isinstance(layer, ProjectedMixer) or getattr(layer.forward, "__func__", None) != ProjectedMixer.forward:
        return layer(x.look_up())
    if any(map(is_hooked, layer.modules())):
        return layer(x.look_up())
    mixed = layer.project_and_mix_at_once(x.table, x.tokens)
    if mixed is None:
        mixed = layer.mix(embedding(x.tokens, layer.project(x.table)))
    return layer.project_out(mixed)
