"""What operators share that process a sequence chunk by chunk: reshaping, decays, checks, choice of a backend."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.kernels.common.dispatch import KERNEL_DTYPES, resolve_backend
from mixerlab.kernels.common.shapes import check_shapes

TRITON_HEAD_DIMS = (16, 32, 64, 128)
NARROW_HEAD_DIMS = TRITON_HEAD_DIMS[:-1]  # of kernels that hold more of a head on the chip
TRITON_CHUNK_SIZES = (16, 32, 64)


def kernel_head_dim(head_dim: int) -> int:
    """The head size with which the kernels run for `head_dim`: at least 16, as the tensor cores need."""
    return max(head_dim, min(TRITON_HEAD_DIMS))


def pad_heads(x: Tensor) -> Tensor:
    """`[..., D]`, padded with zeros to `kernel_head_dim(D)`."""
    padding = kernel_head_dim(x.shape[-1]) - x.shape[-1]
    return F.pad(x, (0, padding)) if padding else x  # `pad` by nothing copies, each way


def check_inputs(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, *, grouped: bool = False) -> None:
    """`ValueError` unless q, k, v are `[B, T, H, D]` of one dtype, and log_decay and beta `[B, T, H]`.

    `grouped`: v may have a multiple of H heads.
    """
    check_shapes(("q", q, ("B", "T", "H", "D")))
    heads = q.shape[2]
    if grouped and v.dim() == 4 and v.shape[2] and v.shape[2] % heads == 0:
        heads = v.shape[2]
    check_shapes(
        ("k", k, q.shape),
        ("v", v, (*q.shape[:2], heads, q.shape[3])),
        ("log_decay", log_decay, q.shape[:3]),
        ("beta", beta, q.shape[:3]),
        fitting=f"q {tuple(q.shape)}",
    )
    if not q.dtype == k.dtype == v.dtype:
        raise ValueError(f"q, k, v have dtypes {q.dtype}, {k.dtype}, {v.dtype}: cast them to one")


def choose_backend(
    device: torch.device,
    dtype: torch.dtype,
    head_dim: int,
    chunk_size: int | None,
    backend: str,
    head_dims: tuple[int, ...] = TRITON_HEAD_DIMS,
) -> str:
    """The backend that runs for such a q: `reference` or `triton`; `ValueError` if the one asked for cannot.

    `chunk_size`: None if the caller has no choice of it.
    """
    reasons = []
    if kernel_head_dim(head_dim) not in head_dims:
        reasons.append(f"head size {head_dim} is none of {head_dims}")
    if chunk_size not in (None, *TRITON_CHUNK_SIZES):
        reasons.append(f"chunk_size={chunk_size} is none of {TRITON_CHUNK_SIZES}")
    if dtype not in KERNEL_DTYPES:
        reasons.append(f"dtype={dtype} is neither float32 nor bfloat16")
    if dtype == torch.float32 and head_dim > 64:
        reasons.append(f"head size {head_dim} in float32 does not fit in shared memory")
    return resolve_backend(backend, device, " and ".join(reasons))


def to_chunks(x: Tensor, chunk_size: int) -> Tensor:
    """`[B, T, H, ...]` to `[B, H, N, chunk_size, ...]`, padded with zeros after T."""
    padding = -x.shape[1] % chunk_size
    x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, padding))
    return x.unflatten(1, (-1, chunk_size)).movedim(3, 1)


def from_chunks(x: Tensor, length: int) -> Tensor:
    """The inverse of `to_chunks`: `[B, H, N, C, ...]` to `[B, length, H, ...]`."""
    return x.movedim(1, 3).flatten(1, 2)[:, :length]


def decay_between(cumulative: Tensor) -> Tensor:
    """`exp(b_i - b_j)` for `j <= i` and 0 elsewhere: `[..., C]` to `[..., C, C]`."""
    difference = cumulative[..., :, None] - cumulative[..., None, :]
    future = torch.ones_like(difference, dtype=torch.bool).triu(1)
    # Masked before the exponential: the upper half would overflow and give NaN gradients.
    return difference.masked_fill(future, -torch.inf).exp()
