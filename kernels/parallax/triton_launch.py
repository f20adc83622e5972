"""Runs the Parallax kernels: which ones, with which tile sizes, into which buffers."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from kernels.parallax.triton_backward import columns_kernel, dot_rows_kernel, rows_kernel
from kernels.parallax.triton_backward_short import short_kernel
from kernels.parallax.triton_forward import forward_kernel
from kernels.parallax.triton_tiles import LOG2_E, descriptor, dot_precision, padded_head_dim

SHORT_LENGTH = 128  # up to here the backward of a head is one tile, and the forward saves nothing for it


@dataclass(frozen=True)
class Tiles:
    """Queries and keys of a tile, and how a program runs it."""

    queries: int
    keys: int
    num_warps: int
    num_stages: int


def forward_tiles(dtype: torch.dtype, length: int, head_dim: int) -> Tiles:
    if dtype == torch.float32:
        return Tiles(32, 32, 4, 2)
    return Tiles(128, 64, 8, 3)


def rows_tiles(dtype: torch.dtype, length: int, head_dim: int) -> Tiles:
    if dtype == torch.float32:
        return Tiles(32, 32, 4, 2)
    return Tiles(128, 64, 8, 2)


def columns_tiles(dtype: torch.dtype, length: int, head_dim: int) -> Tiles:
    if dtype == torch.float32:
        return Tiles(32, 32, 4, 2)
    return Tiles(64, 128, 8, 2)


def short_tiles(dtype: torch.dtype, length: int, head_dim: int) -> Tiles:
    keys = max(16, triton.next_power_of_2(length))
    if dtype == torch.float32:
        return Tiles(16, keys, 4, 1)
    return Tiles(min(64, keys), keys, 4, 2)


def is_short(length: int) -> bool:
    """Whether the backward needs nothing from the forward."""
    return length <= SHORT_LENGTH


def saved_like(q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Buffers for what the forward saves: Σ p v and Σ_KV ρ `[B, T, Hq, D]`, log2 Σ exp and t̄ `[B, Hq, T]`.

    Σ p v stays in float32: the backward takes dO·(Σ p v) from dO·v, and where a query looks at one key the
    two are equal. Empty `[B, 0]` tensors for a short sequence.
    """
    batch, length, heads, _ = q.shape
    if is_short(length):
        nothing = q.new_empty(batch, 0)
        return nothing, nothing.clone(), nothing.clone(), nothing.clone()
    rows = q.new_empty(batch, heads, length, dtype=torch.float32)
    mean_v = q.new_empty(q.shape, dtype=torch.float32)
    return mean_v, q.new_empty(q.shape), rows, torch.empty_like(rows)


def run_forward(
    q: Tensor, rho: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, window: int | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The output `[B, T, Hq, D]` and the four tensors of `saved_like`."""
    batch, length, heads, head_dim = q.shape
    tiles = forward_tiles(q.dtype, length, head_dim)
    o = q.new_empty(q.shape)
    mean_v, cov, log_mass, mean_t = saved_like(q)
    save = not is_short(length)
    grid = (triton.cdiv(length, tiles.queries) * batch * heads,)
    forward_kernel[grid](
        descriptor(q, tiles.queries),
        descriptor(rho, tiles.queries),
        descriptor(k, tiles.keys),
        descriptor(v, tiles.keys),
        descriptor(o, tiles.queries),
        descriptor(mean_v, tiles.queries) if save else None,
        descriptor(cov, tiles.queries) if save else None,
        log_mass,
        mean_t,
        heads,
        length,
        window or 0,
        scale * LOG2_E,
        SAVE=save,
        **_common(q, k, causal, window, tiles),
    )
    return o, mean_v, cov, log_mass, mean_t


def run_backward(
    d_o: Tensor,
    q: Tensor,
    rho: Tensor,
    k: Tensor,
    v: Tensor,
    mean_v: Tensor,
    cov: Tensor,
    log_mass: Tensor,
    mean_t: Tensor,
    scale: float,
    causal: bool,
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dQ, dR, dK and dV."""
    d_q, d_rho, d_k, d_v = (x.new_empty(x.shape) for x in (q, rho, k, v))
    batch, length, heads, head_dim = q.shape
    kv_heads = k.shape[2]
    numbers = (length, window or 0, scale, scale * LOG2_E)
    if is_short(length):
        tiles = short_tiles(q.dtype, length, head_dim)
        short_kernel[(batch * kv_heads,)](
            *(descriptor(x, tiles.queries) for x in (q, rho)),
            *(descriptor(x, tiles.keys) for x in (k, v)),
            *(descriptor(x, tiles.queries) for x in (d_o, d_q, d_rho)),
            *(descriptor(x, tiles.keys) for x in (d_k, d_v)),
            kv_heads,
        *numbers,
            **_common(q, k, causal, window, tiles),
        )
        return d_q, d_rho, d_k, d_v

    beta, gamma = torch.empty_like(log_mass), torch.empty_like(log_mass)
    rows = 64
    dot_rows_kernel[(triton.cdiv(length, rows) * batch * heads,)](
        *(descriptor(x, rows) for x in (d_o, mean_v, cov)),
        beta,
        gamma,
        heads,
        length,
        BLOCK_M=rows,
        BLOCK_D=padded_head_dim(head_dim),
    )
    tiles = rows_tiles(q.dtype, length, head_dim)
    rows_kernel[(triton.cdiv(length, tiles.queries) * batch * heads,)](
        *(descriptor(x, tiles.queries) for x in (q, rho)),
        *(descriptor(x, tiles.keys) for x in (k, v)),
        descriptor(d_o, tiles.queries),
        *(log_mass, mean_t, beta, gamma),
        *(descriptor(x, tiles.queries) for x in (d_q, d_rho)),
        heads,
        *numbers,
        **_common(q, k, causal, window, tiles),
    )
    tiles = columns_tiles(q.dtype, length, head_dim)
    columns_kernel[(triton.cdiv(length, tiles.keys) * batch * kv_heads,)](
        *(descriptor(x, tiles.queries) for x in (q, rho)),
        *(descriptor(x, tiles.keys) for x in (k, v)),
        descriptor(d_o, tiles.queries),
        *(log_mass, mean_t, beta, gamma),
        *(descriptor(x, tiles.keys) for x in (d_k, d_v)),
        kv_heads,
        *numbers,
        **_common(q, k, causal, window, tiles),
    )
    return d_q, d_rho, d_k, d_v


def _common(q: Tensor, k: Tensor, causal: bool, window: int | None, tiles: Tiles) -> dict:
    """The compile-time arguments that every streaming kernel takes."""
    return {
        "GROUP": q.shape[2] // k.shape[2],
        "CAUSAL": causal,
        "HAS_WINDOW": window is not None,
        "BLOCK_M": tiles.queries,
        "BLOCK_N": tiles.keys,
        "BLOCK_D": padded_head_dim(q.shape[3]),
        "PRECISION": dot_precision(q.dtype),
        "num_warps": tiles.num_warps,
        "num_stages": tiles.num_stages,
    }
