"""Mamba's block between its two outer projections, as one operator.

The convolution, the two small projections, the scan and the gate pass slices of packed tensors to each other. In one
operator they read these in place, and each writes its part of a packed gradient. Autograd would pad the gradient of
each slice to the whole tensor and add them up.
"""

import torch
from torch import Tensor

from mixerlab.kernels.common.shapes import check_shapes
from mixerlab.kernels.fused.linear import linear
from mixerlab.kernels.selective_scan import selective_scan, selective_scan_backend
from mixerlab.kernels.short_convolution import MAX_TAPS, short_convolution


def mamba_block(
    xz: Tensor,
    conv_weight: Tensor,
    conv_bias: Tensor,
    x_proj: Tensor,
    dt_proj: Tensor,
    dt_bias: Tensor,
    A_log: Tensor,
    D: Tensor,
    *,
    backend: str = "auto",
) -> Tensor:
    """Mamba's block from its input projection to its output projection, without these (Gu and Dao 2023, figure 3).

    With `x` and `z` the halves of `xz`: `u = short_convolution(x)`, `[dt, B, C] = x_proj u`, `delta = dt_proj dt`,
    and the result is `selective_scan(u, delta, dt_bias, -exp(A_log), B, C, D, z)`.

    Args:
        xz: `[batch, T, 2 * channels]`.
        conv_weight: `[channels, taps]`.
        conv_bias, dt_bias, D: `[channels]`.
        x_proj: `[rank + 2 N, channels]`; cast to the dtype of `xz`, as is `dt_proj`.
        dt_proj: `[channels, rank]`.
        A_log: `[channels, N]`.
        backend: `auto`, `reference` (PyTorch) or `triton`, as `selective_scan` takes it. If there are more taps than
            the kernel of the short convolution takes, the steps run one by one.

    Returns:
        `[batch, T, channels]` in the dtype of `xz`.

    Raises:
        ValueError: shapes that do not fit, or a backend that cannot run here.
    """
    # The kernels trust these shapes: if a parameter had too few channels, they would read the memory after it.
    check_shapes(("dt_proj", dt_proj, ("channels", "rank")), ("A_log", A_log, ("channels", "N")))
    (channels, rank), n = dt_proj.shape, A_log.shape[1]
    check_shapes(
        ("xz", xz, ("batch", "T", 2 * channels)),
        ("conv_weight", conv_weight, (channels, "taps")),
        ("conv_bias", conv_bias, (channels,)),
        ("x_proj", x_proj, (rank + 2 * n, channels)),
        ("dt_bias", dt_bias, (channels,)),
        ("A_log", A_log, (channels, n)),
        ("D", D, (channels,)),
        fitting=f"dt_proj {tuple(dt_proj.shape)} and A_log {tuple(A_log.shape)}",
    )
    x_proj, dt_proj = x_proj.to(xz.dtype), dt_proj.to(xz.dtype)
    scan_backend = selective_scan_backend(xz.device, xz.dtype, n, backend)
    if scan_backend == "triton" and conv_weight.shape[1] <= MAX_TAPS:
        from mixerlab.kernels.selective_scan.block.operator import block  # here, because Triton is optional

        float32 = (t.float()[None] for t in (conv_weight, conv_bias, dt_bias, A_log, D))
        # One group of parameters; under vmap each replica is another.
        return block(xz, x_proj[None], dt_proj[None], *float32)[0]
    of_others = "reference" if backend == "reference" else "auto"
    with torch.autocast(xz.device.type, enabled=False):  # the kernel multiplies in the dtype of xz
        x, z = xz.chunk(2, dim=-1)
        u = short_convolution(x, conv_weight, conv_bias, backend=of_others)
        dt, B, C = linear(u, x_proj, backend=of_others).split((rank, n, n), dim=-1)
        A = -A_log.to(torch.promote_types(A_log.dtype, torch.float32)).exp()
        delta = linear(dt, dt_proj, backend=of_others)
        return selective_scan(u, delta, dt_bias, A, B, C, D, z, backend=backend)
