"""The mesa layer (MesaNet, von Oswald et al. 2025): linear attention through ridge regression."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.kernels.common.chunked import check_inputs, choose_backend, kernel_head_dim, pad_heads
from mixerlab.kernels.common.shapes import check_shapes
from mixerlab.kernels.mesa.reference import mesa_reference


def mesa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    ridge: Tensor,
    *,
    iterations: int = 30,
    chunk_size: int = 64,
    backend: str = "auto",
) -> Tensor:
    """`o_t = G_t (H_t + diag(ridge))^{-1} q_t`: the best linear map from keys to values so far, at `q_t`.

    `H_t = g_t H_{t-1} + beta_t k_t k_t^T` and `G_t = g_t G_{t-1} + beta_t v_t k_t^T`, both 0 before the first position
    (arXiv 2506.05233, the mesa layer with forgetting). The systems are solved by conjugate gradients from zero, in at
    most `iterations` steps. The backward solves the adjoint system in the same way (implicit differentiation), so its
    memory does not grow with the number of steps. There is no second derivative.

    The reference takes all the steps. In the Triton kernels each position takes steps until `|residual| <= 1e-4
    |right-hand side|` (1e-6 in float32). A result never depends on later positions, other sequences or heads.

    Args:
        q, k, v: `[B, T, H, D]`, float32 or bfloat16 (the reference takes float64 too). With keys of unit norm the
            systems are well conditioned.
        log_decay: `log g_t <= 0`, `[B, T, H]`, at least float32.
        beta: weight of a position, in [0, 1], `[B, T, H]`, at least float32.
        ridge: positive, `[H, D]`, at least float32.
        iterations: the most steps of conjugate gradients; but for rounding, D steps solve exactly.
        chunk_size: positions that are processed together; it changes the speed and the rounding.
        backend: `auto`, `reference` (PyTorch, any device) or `triton`.

    Returns:
        `[B, T, H, D]` in the dtype of q. Sums are in float32 (float64 for float64 inputs).

    Raises:
        ValueError: shapes or dtypes that do not fit, fewer than one step, or a backend that cannot run.
    """
    check_inputs(q, k, v, log_decay, beta)
    check_shapes(("ridge", ridge, q.shape[2:]), fitting=f"q {tuple(q.shape)}")
    if iterations < 1:
        raise ValueError(f"iterations={iterations} must be at least 1")
    if mesa_backend(q.device, q.dtype, q.shape[-1], chunk_size, backend) == "reference":
        return mesa_reference(q, k, v, log_decay, beta, ridge, iterations, chunk_size)

    from mixerlab.kernels.mesa.operator import forward  # here, because Triton is optional

    head_dim = q.shape[-1]
    q, k, v = map(pad_heads, (q, k, v))  # the added columns stay zero and change nothing
    ridge = F.pad(ridge, (0, kernel_head_dim(head_dim) - head_dim), value=1.0)
    # One group of sequences; under vmap each replica is another.
    inputs = q, k, v, log_decay.float(), beta.float(), ridge.float()[None]
    return forward(*inputs, iterations, chunk_size)[0][..., :head_dim]


def mesa_backend(
    device: torch.device, dtype: torch.dtype, head_dim: int, chunk_size: int = 64, backend: str = "auto"
) -> str:
    """The backend that `mesa` takes for such inputs: `reference` or `triton`."""
    return choose_backend(device, dtype, head_dim, chunk_size, backend)
