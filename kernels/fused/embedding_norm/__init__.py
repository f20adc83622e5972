"""The beginning of a model: RMSNorm of an embedding, and of the embedding plus the first updates."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mixerlab.kernels.common.autocast import default_dtype
from mixerlab.kernels.common.dispatch import resolve_backend, why_not_triton
from mixerlab.kernels.fused.embedding import Embedded, embedding
from mixerlab.kernels.fused.rms_norm import add_rms_norm

# Largest vocabulary whose table goes through layers in place of the looked-up rows. The backward of every look-up is a
# product with one-hot rows of that length.
MOST_ROWS = 128
MAX_WIDTH = 128  # a program sums the gradients of all tokens in registers


def embedding_rms_norm(
    tokens: Tensor, table: Tensor, gain: Tensor, eps: float, *, backend: str = "auto"
) -> tuple[Tensor | Embedded, Tensor | Embedded]:
    """`x = embedding(tokens, table)` and `rms_norm(x, gain, eps)`, both `[..., D]`; the arguments are theirs.

    The norm of a token is the same at every position. So for up to 128 tokens the table is normed, and both results
    are `Embedded`, to be looked up later. The backward of the norm then has V rows too, because the gradients have been
    added up by token.
    """
    if len(table) > MOST_ROWS:
        return add_rms_norm(embedding(tokens, table, backend=backend), None, gain, eps, backend=backend)
    table, normed = add_rms_norm(table, None, gain, eps, backend=backend)
    return Embedded(tokens, table), Embedded(tokens, normed)


@dataclass(frozen=True, eq=False)
class EmbeddedSum:
    """The sum `rows.look_up() + update` before it is added up.

    The next operator adds them itself: it reads the update in bfloat16, which is less than the sum in float32.

    For autograd the sum is the tensor `zero`, whose elements share one zero in memory. Whoever uses the sum gives its
    gradient to `zero`, and the backward of the operator that made `zero` passes it on. `rows` and `update` are
    detached.

    Args:
        rows: `[..., D]`, float32.
        update: the same shape.
        zero: float32 zeros of that shape.
    """

    rows: Embedded
    update: Tensor
    zero: Tensor

    def add_up(self) -> Tensor:
        """Float32 `[..., D]`."""
        return self.rows.look_up() + self.update + self.zero


def embedded_add_rms_norm(
    x: Embedded | EmbeddedSum, y: Tensor, gain: Tensor, eps: float, *, backend: str = "auto"
) -> tuple[Tensor | EmbeddedSum, Tensor]:
    """`add_rms_norm` of an x that the kernel looks up itself. Its backward adds up the gradients by token.

    Args:
        x: `[..., D]`. The kernel takes float32 tables of up to 128 x 128; others are looked up first.
        y: the same shape.
        gain: `[D]`.
        eps: added to the mean square.
        backend: `auto`, `reference` (PyTorch) or `triton` (float32 and bfloat16, arithmetic in float32).

    Returns:
        The sum, and its norm `[..., D]`. For an `Embedded` the kernel returns the sum as an `EmbeddedSum`.

    Raises:
        ValueError: shapes that do not fit, or a backend that cannot run here.
    """
    if isinstance(x, EmbeddedSum):
        return _add_to_sum(x, y, gain, eps, backend)
    vocabulary, width = x.table.shape
    why = why_not_triton(x.table, y, gain)
    if vocabulary > MOST_ROWS or width > MAX_WIDTH or x.table.dtype != torch.float32:
        why = (
            f"the kernel takes a float32 table of at most {MOST_ROWS} x {MAX_WIDTH}, not {x.table.dtype} of"
            f" {vocabulary} x {width}"
        )
    chosen = resolve_backend(backend, y.device, why)
    if chosen == "reference" or x.shape != y.shape or gain.shape != (width,):
        return add_rms_norm(x.look_up(backend=backend), y, gain, eps, backend=backend)
    from mixerlab.kernels.fused.embedding_norm.operator import look_up_add_norm  # here, because Triton is optional

    # One group of parameters; under vmap each replica is another.
    zero, normed = look_up_add_norm(
        x.tokens.reshape(1, -1),
        x.table[None],
        y.reshape(1, -1, width),
        gain[None],
        eps,
        default_dtype(x.table),
    )
    return EmbeddedSum(replace(x, table=x.table.detach()), y.detach(), zero.view(y.shape)), normed.view(y.shape)


def _add_to_sum(x: EmbeddedSum, z: Tensor, gain: Tensor, eps: float, backend: str) -> tuple[Tensor, Tensor]:
    why = why_not_triton(z, gain)
    chosen = resolve_backend(backend, z.device, why)
    if chosen == "reference" or z.shape != x.zero.shape or gain.shape != z.shape[-1:]:
        return add_rms_norm(x.add_up(), z, gain, eps, backend=backend)
    from mixerlab.kernels.fused.embedding_norm.operator import sum_add_norm

    rows = (1, -1, z.shape[-1])
    total, normed = sum_add_norm(
        x.zero.view(rows),
        x.rows.tokens.reshape(1, -1),
        x.rows.table[None],
        x.update.reshape(rows),
        z.reshape(rows),
        gain[None],
        eps,
        default_dtype(x.zero),
    )
    return total.view(z.shape), normed.view(z.shape)
