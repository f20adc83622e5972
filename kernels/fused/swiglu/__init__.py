"""SwiGLU's gate (Shazeer 2020): `silu(gate) * up` in one launch each way, of two tensors or of two halves of one."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.kernels.common.dispatch import resolve_backend, why_not_triton


def swiglu(gate: Tensor, up: Tensor, *, backend: str = "auto") -> Tensor:
    """`silu(gate) * up`.

    Args:
        gate: `[..., H]`.
        up: the same shape and dtype.
        backend: `auto`, `reference` (PyTorch) or `triton` (float32 and bfloat16, arithmetic in float32).

    Returns:
        `[..., H]` in the inputs' dtype.

    Raises:
        ValueError: inputs of different shapes or dtypes, or a backend that cannot run here.
    """
    if gate.shape != up.shape or gate.dtype != up.dtype:
        raise ValueError(
            f"gate is {gate.dtype} {tuple(gate.shape)} and up {up.dtype} {tuple(up.shape)}: pass two of one kind"
        )
    if resolve_backend(backend, gate.device, why_not_triton(gate)) == "reference":
        return _reference(gate, up)
    from mixerlab.kernels.fused.swiglu.operator import gated  # here, because Triton is optional

    return gated(_rows(gate), _rows(up)).view(gate.shape)


def swiglu_packed(gate_up: Tensor, *, backend: str = "auto") -> Tensor:
    """`swiglu` of the two halves of the last axis, as one projection gives them: `[..., 2 H]` to `[..., H]`.

    The gradient is one tensor too. With two views autograd would copy and add up tensors of the whole size.
    """
    if gate_up.shape[-1] % 2:
        raise ValueError(f"gate_up has shape {tuple(gate_up.shape)}: pass an even last axis, of two halves")
    if resolve_backend(backend, gate_up.device, why_not_triton(gate_up)) == "reference":
        return _reference(*gate_up.chunk(2, dim=-1))
    from mixerlab.kernels.fused.swiglu.operator import gated_packed

    return gated_packed(_rows(gate_up)).view(*gate_up.shape[:-1], gate_up.shape[-1] // 2)


def _reference(gate: Tensor, up: Tensor) -> Tensor:
    wide = torch.promote_types(gate.dtype, torch.float32)
    return (F.silu(gate.to(wide)) * up.to(wide)).to(gate.dtype)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])
