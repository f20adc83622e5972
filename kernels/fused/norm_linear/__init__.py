"""Residual addition, RMSNorm and a linear layer with bias as one operator, for the end of a model."""

import torch
from torch import Tensor

from mixerlab.kernels.common.autocast import default_dtype
from mixerlab.kernels.common.dispatch import resolve_backend, why_not_triton
from mixerlab.kernels.fused.linear import linear
from mixerlab.kernels.fused.rms_norm import add_rms_norm

MAX_WIDTH = MAX_OUTPUTS = 128  # a program holds the whole weight, or its whole gradient, in registers


def norm_linear(
    x: Tensor, y: Tensor | None, gain: Tensor, weight: Tensor, bias: Tensor, eps: float, *, backend: str = "auto"
) -> Tensor:
    """`linear(rms_norm(x + y, gain, eps), weight) + bias`; without `y`, of the norm of `x`.

    Forward and backward each read `x` and `y` once; the sum and its norm are never written. Under autocast both factors
    of the product are rounded to its dtype: in the reference the norm and the weight; in the kernel the norm before it
    is multiplied by the gain, and the weight times the gain.

    Args:
        x: `[..., D]`.
        y: the same shape, or None.
        gain: `[D]`.
        weight: `[V, D]`.
        bias: `[V]`.
        eps: added to the mean square.
        backend: `auto`, `reference` (PyTorch) or `triton`: float32, and bfloat16 outside Triton's interpreter, D
            and V up to 128. `auto` takes the kernel if the product is in bfloat16. If it does not take the kernel,
            `add_rms_norm` and `linear` run, each with its own `auto`.

    Returns:
        `[..., V]`: float32 from the kernel, else in the dtype that `linear` gives.

    Raises:
        ValueError: shapes that do not fit, or a backend that cannot run here.
    """
    width, outputs = x.shape[-1], len(bias)
    if gain.shape != (width,) or weight.shape != (outputs, width):
        raise ValueError(
            f"gain has shape {tuple(gain.shape)}, weight {tuple(weight.shape)}, bias {tuple(bias.shape)} and x"
            f" {tuple(x.shape)}: pass gain [D], weight [V, D] and bias [V] for x [..., D]"
        )
    if y is not None and x.shape != y.shape:
        raise ValueError(f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}: pass two of the same shape")
    dtype = default_dtype(x)
    why = why_not_triton(x, gain, weight, bias, *(() if y is None else (y,)))
    if width > MAX_WIDTH or outputs > MAX_OUTPUTS:
        why = f"the kernel takes a weight of at most {MAX_OUTPUTS} x {MAX_WIDTH}, not {outputs} x {width}"
    chosen = resolve_backend(backend, x.device, why)
    if chosen == "reference" or (backend == "auto" and dtype != torch.bfloat16):
        _, normed = add_rms_norm(x, y, gain, eps, backend=backend)
        return linear(normed, weight, bias, backend=backend)
    from mixerlab.kernels.fused.norm_linear.operator import norm_linear_rows  # here, because Triton is optional

    # One group of parameters; under vmap each replica is another.
    rows = (1, -1, width)
    y = y if y is None else y.reshape(rows)
    out = norm_linear_rows(x.reshape(rows), y, gain[None], weight[None], bias[None], eps, dtype)
    return out.view(*x.shape[:-1], outputs)
