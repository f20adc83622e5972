"""Parallax attention of a projection, in one operator: the projection turns q and k, and the backward turns back."""

from torch import Tensor

from kernels.fused import Form, Part, linear, split_heads
from kernels.fused.linear import autocast
from kernels.fused.operators import why_not_triton
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

    One operator does all of it where the kernels for long sequences run, in bfloat16, and the weight has at most
    128 KB, its heads being a power of two and 16, 32, 64 or 128 wide. It turns in float32 before it rounds, and its
    backward writes one packed gradient. Elsewhere it is `linear`, `split_heads` and `parallax_attention`.

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
    if weight.shape[0] % (4 * heads):
        raise ValueError(f"weight has shape {tuple(weight.shape)}: pass rows for q, k, v and rho of heads={heads}")
    head_dim = weight.shape[0] // (4 * heads)
    if _is_one_operator(x, weight, heads, backend):
        if inverse_frequency.shape != (head_dim // 2,):
            raise ValueError(
                f"inverse_frequency has shape {tuple(inverse_frequency.shape)}: heads of {head_dim} need"
                f" ({head_dim // 2},)"
            )
        from kernels.parallax.triton_projected import projected  # only where it runs: Triton is optional

        # One group of parameters; vmap folds replicas into more.
        return projected(x[None], weight[None], inverse_frequency[None], heads, turn_rho)[0].flatten(0, 1)
    forms = [Form.ROTARY if turn else Form.VIEW for turn in (True, True, False, turn_rho)]
    parts = [Part(heads, head_dim, form) for form in forms]
    q, k, v, rho = split_heads(linear(x, weight), parts, inverse_frequency)
    return parallax_attention(q, rho, k, v, backend=backend)


def _is_one_operator(x: Tensor, weight: Tensor, heads: int, backend: str) -> bool:
    head_dim = weight.shape[0] // (4 * heads)
    if parallax_backend(x.device, x.dtype, head_dim, backend) == "reference" or why_not_triton(x, weight):
        return False
    from kernels.parallax.triton_launch import SHORT_LENGTH
    from kernels.parallax.triton_projection import MAX_WEIGHT_BYTES

    fits = (
        x.dtype == weight.dtype
        and x.shape[-1] == weight.shape[1]
        and weight.nbytes <= MAX_WEIGHT_BYTES
        and x.shape[-1] * x.element_size() % 16 == 0
        and heads.bit_count() == 1
        and head_dim in HEAD_DIMS
    )
    # Full-precision products are faster in the library; the kernel runs them where it is asked to.
    return fits and x.shape[1] > SHORT_LENGTH and (x.dtype.itemsize == 2 or backend == "triton")
