"""A SwiGLU feed-forward layer (Shazeer 2020) as one operator: two products with the gate between them."""

import torch
from torch import Tensor

from mixerlab.kernels.common.autocast import autocast
from mixerlab.kernels.common.dispatch import resolve_backend, why_not_triton
from mixerlab.kernels.common.shapes import check_shapes
from mixerlab.kernels.fused.linear import linear
from mixerlab.kernels.fused.swiglu import swiglu_packed

MAX_WIDTH = 128  # a row of the result, or of the gradient of x, is summed in registers


def swiglu_mlp(x: Tensor, gate_up: Tensor, down: Tensor, *, backend: str = "auto") -> Tensor:
    """`linear(swiglu_packed(linear(x, gate_up)), down)`; under autocast all three are cast to its dtype first.

    Args:
        x: `[..., D]`.
        gate_up: `[2 H, D]`, the gate's weight above the other's.
        down: `[D, H]`. All three in one dtype.
        backend: `auto`, `reference` (PyTorch) or `triton`: float32, and bfloat16 outside Triton's interpreter, D
            up to 128. `auto` takes the kernel only in bfloat16: in float32 the library's products are faster. If it
            does not take the kernel, the three operators run one by one, each with its own `auto`.

    Returns:
        `[..., D]`.

    Raises:
        ValueError: shapes or dtypes that do not fit, or a backend that cannot run here.
    """
    width, inner = x.shape[-1], down.shape[-1]
    check_shapes(("down", down, (width, "H")), fitting=f"x {tuple(x.shape)}")
    check_shapes(("gate_up", gate_up, (2 * inner, width)), fitting=f"x {tuple(x.shape)} and down {tuple(down.shape)}")
    x, gate_up, down = autocast(x, gate_up, down)
    if not x.dtype == gate_up.dtype == down.dtype:
        raise ValueError(
            f"x is {x.dtype}, gate_up {gate_up.dtype} and down {down.dtype}: cast all to one dtype, or use autocast"
        )
    why = why_not_triton(x)
    if width > MAX_WIDTH:
        why = f"the kernel takes rows of at most {MAX_WIDTH}, not {width}"
    chosen = resolve_backend(backend, x.device, why)
    if chosen == "reference" or (backend == "auto" and x.dtype != torch.bfloat16):
        hidden = swiglu_packed(linear(x, gate_up, backend=backend), backend=backend)
        return linear(hidden, down, backend=backend)
    from mixerlab.kernels.fused.mlp.operator import mlp  # here, because Triton is optional

    # One group of parameters; under vmap each replica is another.
    return mlp(x.reshape(1, -1, width), gate_up[None], down[None]).view(x.shape)
