"""The measures of the Parallax paper (sections Mechanism Analysis and Parallax Score Distribution Patterns).

A sequence has T tokens, queries i and keys j; leading axes (sequences, heads) may be any. A query that sees no key but
its own has covariances of zero, and whatever divides by them is NaN. Give float64: covariances are differences.
"""

import torch
from torch import Tensor

ROUNDING = 1e-12  # of a covariance in float64, as a share of the second moments that it is a difference of
SQUARINGS = 16  # of a Gram matrix: its largest eigenvalue within a factor D^(2^-17)


def softmax_weights(q: Tensor, k: Tensor, scale: float, seen: Tensor) -> Tensor:
    """`p_ij = softmax_j(scale q_i k_j)`: q, k `[..., T, D]` and `seen`, bool `[T, T]`, to `[..., T, T]`."""
    return (scale * q @ k.mT).masked_fill(~seen, -torch.inf).softmax(dim=-1)


def combined_weights(p: Tensor, rho: Tensor, k: Tensor) -> Tensor:
    """`s_ij = p_ij (1 - t_ij + E_p[t_i])` with `t_ij = rho_i k_j`: p `[..., T, T]`, rho, k `[..., T, D]`.

    The weights of the values in Parallax, any real numbers with a sum of 1; `[..., T, T]`.
    """
    t = rho @ k.mT
    return p * (1 - t + (p * t).sum(dim=-1, keepdim=True))


def covariance(p: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """`Sigma_XY,i = E_p[(x_j - E_p[x]) (y_j - E_p[y])^T]` of each query: p `[..., T, T]`, x `[..., T, D]`, y
    `[..., T, E]` to `[..., T, D, E]`; `covariance(p, v, k)` is the paper's `Sigma_KV` (equation parameterized_lla).
    It is zero where it is rounding: where a query sees one value, or a token and its copies.
    """
    products = (x[..., :, None] * y[..., None, :]).flatten(-2)
    mean = (p @ products).unflatten(-1, (x.shape[-1], y.shape[-1]))
    found = mean - (p @ x)[..., :, None] * (p @ y)[..., None, :]
    moments = (p @ (x**2).sum(-1, keepdim=True)) * (p @ (y**2).sum(-1, keepdim=True))
    is_rounding = found.norm(dim=(-2, -1)) <= ROUNDING * moments.squeeze(-1).sqrt()
    return found.masked_fill(is_rounding[..., None, None], 0)


def correction_to_output(p: Tensor, s: Tensor, v: Tensor) -> Tensor:
    """`COR_i = |Sigma_KV rho_i| / |o_SA|`: p, s `[..., T, T]`, v `[..., T, D]` to `[..., T]`.

    `Sigma_KV rho_i = sum_j (p_ij - s_ij) v_j` (equation parallax_forward).
    """
    return ((p - s) @ v).norm(dim=-1) / (p @ v).norm(dim=-1)


def correlation_norm(vk: Tensor, vv: Tensor, kk: Tensor, ridge: float = 0.01) -> Tensor:
    """`|Corr_i|_F` with `Corr_i = Sigma_VV^-1/2 Sigma_KV Sigma_KK^-1/2`: covariances `[..., D, D]` to `[...]`.

    The covariances of fewer than D keys are singular, and the paper does not say what it does then. Here `ridge` times
    the mean variance is added to their diagonals, so that directions of less variance than that hardly count. It is
    between 0 and sqrt(D), whatever the scales of keys and values, and NaN where either do not vary.
    """

    def factor(own: Tensor) -> Tensor:
        variance = own.diagonal(dim1=-2, dim2=-1).mean(dim=-1)[..., None, None]
        whole = own + ridge * variance * torch.eye(own.shape[-1], dtype=own.dtype, device=own.device)
        return torch.linalg.cholesky_ex(whole)[0]

    # |A^-1/2 B C^-1/2|_F does not depend on which square roots are taken: Cholesky's are the cheapest.
    left = torch.linalg.solve_triangular(factor(vv), vk, upper=False)
    both = torch.linalg.solve_triangular(factor(kk), left.mT, upper=False).norm(dim=(-2, -1))
    varies = (vv != 0).any(dim=-1).any(dim=-1) & (kk != 0).any(dim=-1).any(dim=-1)
    return both.masked_fill(~varies, torch.nan)


def probe_alignment(vk: Tensor, rho: Tensor) -> Tensor:
    """`CPA_i = |Sigma_KV rho_i| / (|rho_i| |Sigma_KV|_2)`: `[..., D, E]` and `[..., E]` to `[...]`, in [0, 1]."""
    return (vk @ rho[..., None]).squeeze(-1).norm(dim=-1) / (rho.norm(dim=-1) * spectral_norm(vk))


def sink(p: Tensor) -> Tensor:
    """`p_i1`, what the first token gets: `[..., T, T]` to `[..., T]`."""
    return p[..., 0]


def combined_sink(s: Tensor) -> Tensor:
    """`s_i1^2 / sum_j s_ij^2`, as weights may be negative: `[..., T, T]` to `[..., T]`."""
    return s[..., 0] ** 2 / (s**2).sum(dim=-1)


def entropy(p: Tensor) -> Tensor:
    """`H_i = - sum_j p_ij log p_ij`, in nats: `[..., T, T]` to `[..., T]`."""
    return torch.special.entr(p).sum(dim=-1)


def spectral_norm(matrix: Tensor) -> Tensor:
    """The largest singular value of `[..., M, N]`: `[...]`, up to a factor of 1 + 2e-5, and never too small.

    `|G^n|_F^(1/n)` tends to the largest eigenvalue of the Gram matrix G. Squaring it is much faster on a GPU than a
    decomposition of thousands of small matrices.
    """
    gram = matrix @ matrix.mT if matrix.shape[-2] < matrix.shape[-1] else matrix.mT @ matrix
    largest, power = torch.ones_like(gram[..., 0, 0]), 1.0
    for _ in range(SQUARINGS + 1):
        norm = gram.norm(dim=(-2, -1))
        largest = largest * norm**power
        gram = gram / norm.clamp(min=torch.finfo(gram.dtype).tiny)[..., None, None]
        gram, power = gram @ gram, power / 2
    return largest.sqrt()


def stable_rank(matrix: Tensor) -> Tensor:
    """`|W|_F^2 / |W|_2^2` (section Notation): `[..., M, N]` to `[...]`; NaN for a matrix of zeros."""
    return (matrix.norm(dim=(-2, -1)) / spectral_norm(matrix)) ** 2


def circuit(left: Tensor, right: Tensor) -> Tensor:
    """`left^T right` of each head, from weights `[H, D, d_model]`: `[H, d_model, d_model]`.

    `q_i k_j = x_i W_QK x_j` is of W_Q and W_K, W_RK of W_R and W_K, and `W_OV = W_O W_V` of W_O^T and W_V (paragraph
    Spectral structure of weights, whose `W_Q W_K^T` and `W_R W_K^T` are of weights that stand on the right, `x W_Q`).
    """
    return left.mT @ right
