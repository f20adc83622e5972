"""The gated RMSNorm behind a recurrence (Gated DeltaNet, KDA): norm of each head and gate in one launch each way."""

from torch import Tensor

from mixerlab.kernels.common.dispatch import resolve_backend, why_not_triton
from mixerlab.kernels.fused.rms_norm import MAX_WIDTH
from mixerlab.kernels.fused.rms_norm.reference import wide_rms_norm
from mixerlab.kernels.fused.swiglu import swiglu


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, *, silu: bool = True, backend: str = "auto"
) -> Tensor:
    """`silu(gate) * rms_norm(x, weight, eps)`, the heads side by side.

    Args:
        x: `[B, T, H, D]`; D up to 1024 in the kernel.
        gate: `[B, T, H D]`, in the dtype of x; the kernel takes any strides whose last is one.
        weight: `[D]`, of every head.
        eps: added to the mean square.
        silu: False: `sigmoid(gate)` in its place.
        backend: `auto`, `reference` (PyTorch) or `triton` (float32 and bfloat16, arithmetic in float32).

    Returns:
        `[B, T, H D]` in the dtype of x. The kernel does not round the norm before it is gated.

    Raises:
        ValueError: shapes or dtypes that do not fit, or a backend that cannot run here.
    """
    fits = x.ndim == 4 and gate.shape == (*x.shape[:2], x.shape[2] * x.shape[3]) and weight.shape == x.shape[3:]
    if not fits or gate.dtype != x.dtype:
        raise ValueError(
            f"x is {x.dtype} {tuple(x.shape)}, gate {gate.dtype} {tuple(gate.shape)} and weight {tuple(weight.shape)}:"
            " pass x [B, T, H, D], a gate [B, T, H D] of its dtype and a weight [D]"
        )
    why = why_not_triton(x, gate, weight)
    if x.shape[-1] > MAX_WIDTH:
        why = f"the kernel takes heads of at most {MAX_WIDTH}, not {x.shape[-1]}"
    if resolve_backend(backend, x.device, why) == "reference":
        normed = wide_rms_norm(x, weight, eps).to(x.dtype).flatten(-2)
        return swiglu(gate, normed, backend="reference") if silu else normed * gate.sigmoid()
    from mixerlab.kernels.fused.gated_norm.operator import gated_norm  # here, because Triton is optional

    # One group of parameters; under vmap each replica is another.
    y = gated_norm(x.reshape(1, -1, x.shape[-1]), gate.reshape(1, -1, gate.shape[-1]), weight[None], eps, silu)
    return y.view(gate.shape)
