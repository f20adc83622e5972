"""What a mixer keeps from token to token: named tensors, `[B, ...]` each, which the next tokens change in place."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

# Floating-point tensors are what `state_size` counts; integers say where in them the next token goes.
State = dict[str, Tensor]


def kv_cache(
    batch: int, max_len: int, num_heads: int, head_dim: int, device: torch.device, dtype: torch.dtype
) -> State:
    """Keys `k` and values `v` of `max_len` tokens, `[B, max_len, num_heads, head_dim]`; `length`, int32 `[B]`."""
    k, v = (torch.zeros(batch, max_len, num_heads, head_dim, device=device, dtype=dtype) for _ in range(2))
    return {"k": k, "v": v, "length": torch.zeros(batch, device=device, dtype=torch.int32)}


def append(cache: State, k: Tensor, v: Tensor, ring: bool = False) -> Tensor:
    """Writes the keys and values `[B, T, num_heads, head_dim]` of the next T tokens.

    Where they go is known on the device alone, so that a captured graph writes each replay behind the last. In a `ring`
    they go over the oldest ones when the cache is full.

    Returns:
        The positions of these tokens, int32 `[B, T]`.
    """
    length = cache["length"]
    positions = length[:, None] + torch.arange(k.shape[1], device=length.device, dtype=length.dtype)
    rows = torch.arange(len(length), device=length.device)[:, None]
    slots = positions % cache["k"].shape[1] if ring else positions
    cache["k"].index_put_((rows, slots), k)
    cache["v"].index_put_((rows, slots), v)
    length += k.shape[1]
    return positions


def convolution_tail(batch: int, d_conv: int, channels: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The inputs that a convolution over `d_conv` positions looks back at, zeros at first: `[B, d_conv - 1, C]`.

    Empty without convolution, `d_conv` 0.
    """
    return torch.zeros(batch, max(d_conv - 1, 0), channels, device=device, dtype=dtype)


def behind_tail(tail: Tensor, packed: Tensor) -> Tensor:
    """`packed` `[B, T, C]` behind the `tail` of its first columns, which becomes that of the next tokens.

    Returns:
        `[B, d_conv - 1 + T, C]`. What is made of its first d_conv - 1 rows is to be dropped: `[:, -T:]` is left.
    """
    channels = tail.shape[2]
    rows = torch.cat((F.pad(tail, (0, packed.shape[2] - channels)), packed), dim=1)
    tail.copy_(rows[:, packed.shape[1] :, :channels])
    return rows


def recompute(function: Callable[[Tensor], Tensor], x: Tensor, state: State) -> Tensor:
    """What `function` gives of the tokens `x` `[B, T, C]` behind those in `state`, from all of them; slow."""
    prefix = torch.cat((state["prefix"], x), dim=1) if "prefix" in state else x
    state["prefix"] = prefix
    return function(prefix)[:, prefix.shape[1] - x.shape[1] :]
