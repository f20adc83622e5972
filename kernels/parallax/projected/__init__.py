"""Parallax attention with its projection and rotary embedding as one operator."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mixerlab.kernels.common.autocast import autocast
from mixerlab.kernels.common.device import shared_memory
from mixerlab.kernels.common.shapes import check_shapes
from mixerlab.kernels.fused.embedding import embedding
from mixerlab.kernels.fused.heads import norm_heads, rotary_heads
from mixerlab.kernels.fused.linear import join_rows, linear
from mixerlab.kernels.parallax import parallax_attention, parallax_backend

HEAD_DIMS = (16, 32, 64, 128)


def projected_parallax(
    x: Tensor,
    weight: Tensor,
    inverse_frequency: Tensor,
    heads: int,
    *,
    gains: Sequence[Tensor] = (),
    eps: float = 0.0,
    rows: Tensor | None = None,
    rotate_rho: bool = False,
    backend: str = "auto",
) -> Tensor:
    """`parallax_attention` of `q, k, v, rho = linear(x, weight)`, with q and k rotated by their position (RoFormer).

    With `gains`, the heads of q, k and rho are RMS-normed before the rotation.

    One operator does all of it if the kernels for long sequences run, which takes bfloat16 on a GPU, T above 128, D one
    of 16, 32, 64 and 128, and frequencies without a gradient. Its backward writes the gradient of the projection as one
    tensor.

    Without `rows` it rotates the products in float32 and rounds them afterwards; what it norms it rounds before too. It
    then also needs as much shared memory as Hopper has, K and heads D of at most 128, K a multiple of 8 and heads a
    power of two. With `rows` it norms the rounded products, once for each row of the table, looks them up and rotates
    them, and adds up their gradients by row.

    Otherwise `linear`, `split_heads` and `parallax_attention` run one after another.

    Args:
        x: `[B, T, K]`, or `[N, K]` with `rows`. Under autocast x and the weight are cast first.
        weight: `[4 heads D, K]`: the rows of queries, keys, values and probes.
        inverse_frequency: float32 `[D / 2]`, as `rotary_heads` takes it.
        heads: how many; it divides a quarter of the weight's rows.
        gains: `[D]` each, of q, k and rho, or none; in any dtype of the kernels.
        eps: added to the mean square of what is normed.
        rows: int64 `[B, T]`, from 0 to N - 1: the input is `x[rows]`.
        rotate_rho: rotate the probes too.
        backend: as `parallax_attention` takes it.

    Returns:
        `[B, T, heads, D]`.

    Raises:
        ValueError: shapes that do not fit, or a backend that cannot run here.
    """
    if rows is None and (x.ndim != 3 or 0 in x.shape):
        raise ValueError(f"x has shape {tuple(x.shape)}: pass a non-empty [B, T, K]")
    if rows is not None and (x.ndim != 2 or rows.ndim != 2 or 0 in (*x.shape, *rows.shape)):
        raise ValueError(
            f"x has shape {tuple(x.shape)} and rows {tuple(rows.shape)}: pass a non-empty [N, K] and [B, T]"
        )
    if heads < 1 or weight.shape[0] % (4 * heads):
        raise ValueError(
            f"weight has shape {tuple(weight.shape)} and heads={heads}: pass 4 heads D rows for q, k, v and rho"
        )
    head_dim = weight.shape[0] // (4 * heads)
    check_shapes(("inverse_frequency", inverse_frequency, (head_dim // 2,)), fitting=f"heads of {head_dim}")
    if [tuple(gain.shape) for gain in gains] not in ([], [(head_dim,)] * 3):
        raise ValueError(
            f"gains have shapes {[tuple(gain.shape) for gain in gains]}: pass ({head_dim},) for each of q, k and rho"
        )
    of_q, of_k, of_rho = gains or (None,) * 3
    # One group of parameters; under vmap each replica is another.
    if rows is not None:
        products = linear(x, weight)
        if gains:
            products = norm_heads(products, (heads,) * 4, head_dim, (of_q, of_k, None, of_rho), eps)
        if is_one_operator(products.device, products.dtype, rows.shape[1], head_dim, inverse_frequency, backend):
            from mixerlab.kernels.parallax.projected.operator import looked_up  # here, because Triton is optional

            return looked_up(rows[None], products[None], inverse_frequency[None], heads, rotate_rho)[0].flatten(0, 1)
        packed, of_q, of_k, of_rho = embedding(rows, products), None, None, None
    else:
        x, weight = autocast(x, weight)
        given = x.device, x.dtype, x.shape[1], head_dim, inverse_frequency, backend
        if is_one_operator(*given) and _fits_projection(x, weight, heads):
            from mixerlab.kernels.parallax.projected.operator import projected

            joined = join_rows(*(gain[None] for gain in gains))[None] if gains else None
            rest = eps, heads, rotate_rho
            return projected(x[None], weight[None], inverse_frequency[None], joined, *rest)[0].flatten(0, 1)
        packed = linear(x, weight)
    rotated, of_parts = (True, True, False, rotate_rho), (of_q, of_k, None, of_rho)
    q, k, v, rho = rotary_heads(packed, heads, inverse_frequency, rotated, of_parts, eps)
    return parallax_attention(q, rho, k, v, backend=backend)


def is_one_operator(
    device: torch.device, dtype: torch.dtype, length: int, head_dim: int, frequency: Tensor, backend: str
) -> bool:
    """Whether the kernels for long sequences run for products of this kind, and rotate them by this `frequency`."""
    if parallax_backend(device, dtype, head_dim, backend) == "reference":
        return False
    from mixerlab.kernels.parallax.triton_launch import SHORT_LENGTH

    # Float32 only in the interpreter: on a GPU the kernels would take a minute to compile, and the library is faster.
    dtypes = (torch.bfloat16,) if device.type == "cuda" else (torch.bfloat16, torch.float32)
    fixed = frequency.dtype == torch.float32 and not frequency.requires_grad
    return length > SHORT_LENGTH and head_dim in HEAD_DIMS and dtype in dtypes and fixed


def _fits_projection(x: Tensor, weight: Tensor, heads: int) -> bool:
    """Whether the projection kernel takes these."""
    from mixerlab.kernels.parallax.projected.triton_projection import MAX_WIDTH, SHARED_MEMORY

    columns, width = weight.shape
    return (
        x.dtype == weight.dtype
        and x.shape[2] == width <= MAX_WIDTH
        and width * x.element_size() % 16 == 0
        and heads & (heads - 1) == 0
        and columns // 4 <= MAX_WIDTH
        and (x.device.type != "cuda" or shared_memory(x.device) >= SHARED_MEMORY)
    )
