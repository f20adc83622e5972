"""Parallax attention of a projection, in one operator: the projection turns q and k, and the backward turns back."""

import torch
from torch import Tensor

from kernels.fused import Form, Part, linear, split_heads
from kernels.fused.linear import autocast
from kernels.parallax import parallax_attention, parallax_backend

HEAD_DIMS = (16, 32, 64, 128)


def projected_parallax(
    x: Tensor,
    weight: Tensor,
    inverse_frequency: Tensor,
    heads: int,
    *,
    turn_rho: bool = False,
    backend: str = "auto",
) -> Tensor:
    """`parallax_attention` of `q, k, v, rho = linear(x, weight)`, q and k turned by their position (RoFormer).

    One operator does all of it in bfloat16, on a GPU with shared memory like Hopper's, where the kernels for long
    sequences run: T above 128, K and heads D at most 128, K a multiple of 8, heads a power of two, D one of 16, 32, 64
    and 128, frequencies that need no gradient. It turns in float32 before it rounds, and its backward writes one packed
    gradient. Elsewhere it is `linear`, `split_heads` and `parallax_attention`.

    Args:
        x: `[B, T, K]`.
        weight: `[4 heads D, K]`, rows of queries, keys, values and probes. Under autocast both are cast first.
        inverse_frequency: float32 `[D / 2]`, as `rotary` takes it.
        heads: a divisor of a quarter of the weight's rows.
        turn_rho: turn the probes as well.
        backend: as `parallax_attention` takes it.

    Returns:
        `[B, T, heads, D]`.

    Raises:
        ValueError: shapes that do not fit, or a backend that cannot run here.
    """
    x, weight = autocast(x), autocast(weight)
    if x.ndim != 3 or 0 in x.shape:
        raise ValueError(f"x has shape {tuple(x.shape)}: pass a non-empty [B, T, K]")
    if heads < 1 or weight.shape[0] % (4 * heads):
        raise ValueError(
            f"weight has shape {tuple(weight.shape)} and heads={heads}: pass 4 heads D rows for q, k, v and rho"
        )
    head_dim = weight.shape[0] // (4 * heads)
    if inverse_frequency.shape != (head_dim // 2,):
        raise ValueError(
            f"inverse_frequency has shape {tuple(inverse_frequency.shape)}: heads of {head_dim} need ({head_dim // 2},)"
        )
    if _is_one_operator(x, weight, inverse_frequency, heads, backend):
        from kernels.parallax.triton_projected import projected  # only where it runs: Triton is optional

        # One group of parameters; vmap folds replicas into more.
        return projected(x[None], weight[None], inverse_frequency[None], heads, turn_rho)[0].flatten(0, 1)
    forms = [Form.ROTARY if turn else Form.VIEW for turn in (True, True, False, turn_rho)]
    parts = [Part(heads, head_dim, form) for form in forms]
    q, k, v, rho = split_heads(linear(x, weight), parts, inverse_frequency)
    return parallax_attention(q, rho, k, v, backend=backend)


def _is_one_operator(x: Tensor, weight: Tensor, inverse_frequency: Tensor, heads: int, backend: str) -> bool:
    head_dim = weight.shape[0] // (4 * heads)
    if parallax_backend(x.device, x.dtype, head_dim, backend) == "reference":
        return False
    from kernels.parallax.triton_launch import SHORT_LENGTH
    from kernels.parallax.triton_projection import MAX_WIDTH, SHARED_MEMORY

    width = x.shape[2]
    shapes = (
        x.shape[1] > SHORT_LENGTH
        and width == weight.shape[1] <= MAX_WIDTH
        and width * x.element_size() % 16 == 0
        and heads & (heads - 1) == 0
        and head_dim in HEAD_DIMS
        and heads * head_dim <= MAX_WIDTH
    )
    # Float32 in the interpreter alone: on a GPU the kernel would take a minute to compile, and the library is faster.
    on_gpu = x.device.type == "cuda"
    dtypes = x.dtype == weight.dtype and x.dtype in ((torch.bfloat16,) if on_gpu else (torch.bfloat16, torch.float32))
    frequencies = inverse_frequency.dtype == torch.float32 and not inverse_frequency.requires_grad
    return shapes and dtypes and frequencies and (not on_gpu or _shared_memory(x.device) >= SHARED_MEMORY)


@torch.compiler.assume_constant_result
def _shared_memory(device: torch.device) -> int:
    """Bytes that a program may have."""
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin
