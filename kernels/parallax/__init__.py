"""Parallax attention: softmax attention minus a key-value covariance read by a learned probe ρ.

For a query i over the keys j that it sees, with p the softmax of `scale q·k`, t = ρ·k and t̄ = Σ p t:

    o = Σ p (1 + t̄ - t) v = Σ p v - Σ p (t - t̄) v

Parallax: Parameterized Local Linear Attention for Language Modeling (equation `parallax_forward`).
`README.md` has the gradients, the kernels and their speed.
"""

import torch
from torch import Tensor

from mixerlab.kernels.common.dispatch import resolve_backend
from mixerlab.kernels.common.shapes import check_shapes
from mixerlab.kernels.parallax.reference import parallax_reference

KERNEL_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MIN_HEAD_DIM, MAX_HEAD_DIM = 8, 128


def parallax_attention(
    q: Tensor,
    rho: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    window: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """Causal Parallax attention, differentiable in its four inputs.

    Args:
        q, rho: queries and probes `[B, T, Hq, D]`.
        k, v: keys and values `[B, T, Hkv, D]`, Hq a multiple of Hkv.
        scale: multiplies q·k, and not ρ·k; `D ** -0.5` by default.
        window: a query sees itself and the `window - 1` keys before it; by default all of them.
        backend: `reference` (PyTorch), `triton` (GPU) or `auto`; `parallax_backend` says which one runs.

    The kernels take bfloat16, float16 or float32 with D from 8 to 128, and raise if they are differentiated twice. All
    four inputs have one dtype and one device; their strides may be any.

    Returns:
        `[B, T, Hq, D]` in the inputs' dtype.

    Raises:
        TypeError: a tensor of the wrong dtype.
        ValueError: shapes, devices or options that do not fit.
    """
    check_inputs(window, q=q, rho=rho, k=k, v=v)
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if parallax_backend(q.device, q.dtype, q.shape[-1], backend) == "reference":
        return parallax_reference(q, rho, k, v, scale, window)

    from mixerlab.kernels.parallax.operator import parallax_triton  # here, because Triton is optional

    return parallax_triton(q, rho, k, v, scale, window)


def parallax_backend(device: torch.device, dtype: torch.dtype, head_dim: int, backend: str = "auto") -> str:
    """The backend that `parallax_attention` takes for such inputs: `reference` or `triton`.

    Raises:
        ValueError: an unknown backend, or `triton` for inputs that the kernels do not take.
    """
    reasons = []
    if dtype not in KERNEL_DTYPES:
        reasons.append(f"dtype={dtype} is not bfloat16, float16 or float32")
    if not MIN_HEAD_DIM <= head_dim <= MAX_HEAD_DIM:
        reasons.append(f"head dim {head_dim} is not from {MIN_HEAD_DIM} to {MAX_HEAD_DIM}")
    return resolve_backend(backend, device, " and ".join(reasons))


def check_inputs(window: int | None, *, cached: bool = False, **tensors: Tensor) -> None:
    """Of queries, probes, keys and values, under their names; keys of any length if they are `cached`."""
    (q, rho, k, v), (*_, k_name, v_name) = tensors.values(), tensors
    if not q.dtype.is_floating_point or q.dtype.itemsize < 2:
        raise TypeError(f"q.dtype={q.dtype} is not supported: pass bfloat16, float16, float32 or float64")
    for name, x in tensors.items():
        if x.dtype != q.dtype:
            raise TypeError(f"{name}.dtype={x.dtype}, q.dtype={q.dtype}: cast all four to one dtype")
        if x.device != q.device:
            raise ValueError(f"{name} is on {x.device} and q on {q.device}: move all four to one device")
    check_shapes(("q", q, ("B", "T", "Hq", "D")))
    batch, length, heads, head_dim = q.shape
    check_shapes(
        ("rho", rho, q.shape),
        (k_name, k, (batch, "S" if cached else length, "Hkv", head_dim)),
        (v_name, v, k.shape),
        fitting=f"q {tuple(q.shape)} and {k_name} {tuple(k.shape)}",
    )
    if heads % k.shape[2]:
        raise ValueError(f"q has {heads} heads, not a multiple of the {k.shape[2]} heads of {k_name} and {v_name}")
    if window is not None and window < 1:
        raise ValueError(f"window={window} is not positive: pass at least 1, or None for no window")
