"""The selective scan of Mamba-1 (Gu and Dao 2023): a diagonal recurrence whose decay depends on the input."""

import torch
from torch import Tensor

from mixerlab.kernels.common.dispatch import KERNEL_DTYPES, resolve_backend
from mixerlab.kernels.common.shapes import check_shapes
from mixerlab.kernels.selective_scan.reference import selective_scan_reference


def selective_scan(
    u: Tensor,
    delta: Tensor,
    delta_bias: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    z: Tensor,
    *,
    backend: str = "auto",
) -> Tensor:
    """`y_t = (C_t . h_t + D u_t) silu(z_t)`, with `h_t = exp(d_t A) h_{t-1} + d_t u_t B_t`, `h_0 = 0`.

    `d_t = softplus(delta_t + delta_bias)` is the step size of each channel, `h_t` `[channels, N]` the state and `A` its
    decay rates. This is equation 2 of Mamba (Gu and Dao 2023), with A discretised by zero-order hold and B by an Euler
    step, and with the gate of Mamba's block. The state is float32 for all inputs (in the reference float64 for
    float64).

    Args:
        u, delta, z: `[batch, T, channels]`; any strides.
        delta_bias, D: `[channels]`.
        A: `[channels, N]`, negative.
        B, C: `[batch, T, N]`; any strides.
        backend: `auto`, `reference` (PyTorch) or `triton`.

    Returns:
        `[batch, T, channels]` in the dtype of `u`.

    Raises:
        ValueError: shapes that do not fit, or a backend that cannot run here.
    """
    check_shapes(("u", u, ("batch", "T", "channels")), ("A", A, ("channels", "N")))
    batch, length, channels = u.shape
    states = A.shape[1]
    check_shapes(
        ("delta", delta, u.shape),
        ("z", z, u.shape),
        ("delta_bias", delta_bias, (channels,)),
        ("D", D, (channels,)),
        ("A", A, (channels, states)),
        ("B", B, (batch, length, states)),
        ("C", C, (batch, length, states)),
        fitting=f"u {tuple(u.shape)} and A {tuple(A.shape)}",
    )
    if selective_scan_backend(u.device, u.dtype, A.shape[1], backend) == "reference":
        return selective_scan_reference(u, delta, delta_bias, A, B, C, D, z)
    from mixerlab.kernels.selective_scan.operator import scan  # here, because Triton is optional

    # B and C are small and every channel reads them: they are converted once here, not in each thread of the kernel.
    # One group of parameters; under vmap each replica is another.
    BC = torch.cat((B, C), dim=-1).float()
    return scan(u, delta, delta_bias.float()[None], A.float()[None], BC, D.float()[None], z)[0]


def selective_scan_backend(device: torch.device, dtype: torch.dtype, state_size: int, backend: str = "auto") -> str:
    """The backend that `selective_scan` takes for such inputs: `reference` or `triton`."""
    why = ""
    if dtype not in KERNEL_DTYPES:
        why = f"the kernel takes float32 and bfloat16, not {dtype}"
    elif not 4 <= state_size <= 64:
        why = f"the kernel takes state sizes N from 4 to 64, not {state_size}"
    return resolve_backend(backend, device, why)
