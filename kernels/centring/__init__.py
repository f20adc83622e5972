"""What an intercept makes of a weighted regression: the one without it, of keys and values without their means."""

from torch import Tensor

from mixerlab.kernels.centring.reference import centred_reference
from mixerlab.kernels.common.chunked import NARROW_HEAD_DIMS, check_inputs, choose_backend, pad_heads


def centred(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, beta: Tensor, *, backend: str = "auto"
) -> tuple[Tensor, ...]:
    """Turns a regression of values on keys with an intercept, at every position, into one without.

    The weights are `beta_s exp(log_decay_{s+1} + ... + log_decay_t)`. With m the means before position t, and n the
    sums of the weights before and with it, the sums over `(k - mean(k)) (k - mean(k))^T` follow the recurrence `H_t =
    gamma_t H_{t-1} + beta_t (gamma_t n_{t-1} / n_t) (k_t - m) (k_t - m)^T`, and those with values alike (Welford 1962).
    So other keys, values and beta do.

    Args:
        q, k, v: `[B, T, H, D]`, float32 or bfloat16 (the reference takes float64 too).
        log_decay: at most 0, `[B, T, H]`, at least float32.
        beta: at least 0, the same shape and dtype. Where all weights are 0, the means are 0.
        backend: `auto`, `reference` (PyTorch, any device) or `triton`.

    Returns:
        q without the mean key, k, v and beta of the regression, and the means of the values: shapes and dtypes of q, k,
        v, beta and v.

    Raises:
        ValueError: shapes or dtypes that do not fit, or a backend that cannot run.
    """
    check_inputs(q, k, v, log_decay, beta)
    head_dim = q.shape[-1]
    if choose_backend(q.device, q.dtype, head_dim, None, backend, NARROW_HEAD_DIMS) == "reference":
        return centred_reference(q, k, v, log_decay, beta)

    from mixerlab.kernels.centring.operator import forward  # here, because Triton is optional

    q, k, v = map(pad_heads, (q, k, v))
    q, k, v, beta, mean_v, _ = forward(q, k, v, log_decay.float(), beta.float())
    return *(x[..., :head_dim] for x in (q, k, v)), beta, mean_v[..., :head_dim]
