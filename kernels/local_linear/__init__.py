"""The probe of local linear attention: a ridge regression at every query, solved by conjugate gradients."""

import torch
from torch import Tensor

from mixerlab.kernels.common.chunked import NARROW_HEAD_DIMS, choose_backend, pad_heads
from mixerlab.kernels.common.shapes import check_shapes
from mixerlab.kernels.local_linear.operator import forward


def solved_probe(
    q: Tensor,
    k: Tensor,
    *,
    scale: float,
    ridge: float,
    relative: bool = False,
    iterations: int = 30,
    backend: str = "auto",
) -> Tensor:
    """`rho_i = (Var_p(k) + ridge / omega_i)^{-1} (mean_p(k) - q_i)`, differentiable in q and k.

    p are the softmax weights of `scale q_i.k_j` over the keys up to i, and omega the sum of `exp(scale q_i.k_j)`. Read
    by Parallax attention, which gives `o = Σ p v - Cov_p(v, k) rho`, it is local linear attention. It is
    `(1 + eta) rho*` of the Parallax paper (equation `parameterized_lla`): a regression around the query, `rho* =
    Sigma^{-1} mu`, with the boundary amplification, is one around the mean key (its proof of proposition
    `nonnegative_eta`), whose systems are better conditioned.

    The systems are solved from zero in `iterations` steps of conjugate gradients, and so are those of the adjoint in
    the backward (implicit differentiation). Memory does not grow with their number, nor with the square of the length:
    `CHUNK_SIZE` queries are solved at once, and their weights are computed again in the backward. There is no second
    derivative.

    Args:
        q, k: `[B, T, H, D]`.
        scale: multiplies q·k; one over the bandwidth h.
        ridge: lambda of the paper, above 0.
        relative: the ridge is lambda itself instead of lambda / omega, as if the paper's were lambda times omega. Then
            large weights cannot leave a system singular.
        iterations: D steps solve exactly, but for rounding.
        backend: of the steps: `auto`, `reference` (PyTorch, any device) or `triton` (heads up to 16, of 32 and of 64).

    Returns:
        `[B, T, H, D]`, float32; float64 for float64 inputs.

    Raises:
        ValueError: shapes that do not fit, or a backend that cannot run here.
    """
    check_shapes(("q", q, ("B", "T", "H", "D")), ("k", k, q.shape), fitting=f"q {tuple(q.shape)}")
    head_dim = q.shape[-1]
    if solved_probe_backend(q.device, q.dtype, head_dim, backend) == "reference":
        return forward(q, k, scale, ridge, relative, iterations, False)
    q, k = map(pad_heads, (q, k))  # the added columns stay zero and change nothing
    return forward(q, k, scale, ridge, relative, iterations, True)[..., :head_dim]


def solved_probe_backend(device: torch.device, dtype: torch.dtype, head_dim: int, backend: str = "auto") -> str:
    """The backend that `solved_probe` takes for such inputs: `reference` or `triton`."""
    wide = torch.promote_types(dtype, torch.float32)
    return choose_backend(device, wide, head_dim, None, backend, NARROW_HEAD_DIMS)
