"""What several operators and layers are compared with: their parts, written out in plain PyTorch."""

import torch
import torch.nn.functional as F

EPS = 1e-5  # of the norms


def plain_norm(x, gain):
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * gain


def of_length_one(x):
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def rotary(x, frequency):
    """Pairs (i, i + D/2) of `[B, T, H, D]` as complex numbers, turned by position times frequency."""
    angles = torch.arange(x.shape[1]).to(x)[:, None, None] * frequency.to(x)
    z = torch.complex(*x.chunk(2, dim=-1)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((z.real, z.imag), dim=-1)


def attention(q, k, v, rho=None, window=None):
    """With `rho` that of Parallax: minus the covariance of values and keys, read by rho. With a window of its last."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    one = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
    hidden = one.triu(1) | one.tril(-(window or len(one)))
    p = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    if rho is not None:
        t = torch.einsum("bihd,bjhd->bhij", rho, k)
        p = p - p * (t - (p * t).sum(-1, keepdim=True))
    return torch.einsum("bhij,bjhd->bihd", p, v)


def convolution(x, weight, bias=0):
    """Of each channel of `[B, T, C]` with its taps `[C, K]`, the last for the position itself; then SiLU."""
    taps = weight.shape[1]
    padded = F.pad(x, (0, 0, taps - 1, 0))
    total = bias + sum(weight[:, k] * padded[:, k : k + x.shape[1]] for k in range(taps))
    return total * torch.sigmoid(total)


def convolved(mixer, name, x):
    """A projection of `x` `[T, d_model]` and its convolution, `[T, H, D]`."""
    y = x @ getattr(mixer, f"{name}_proj").weight.T
    if mixer.d_conv:
        y = convolution(y[None], getattr(mixer, f"{name}_conv").weight[:, 0])[0]
    return y.unflatten(-1, (mixer.num_heads, -1))


def delta_rule(q, k, v, decay, beta):
    """`S <- S diag(decay) (I - beta k k^T) + beta v k^T`, read at q; all `[..., T, H, D]` but beta."""
    state, rows = v.new_zeros(*v.shape[:-3], *v.shape[-2:], k.shape[-1]), []
    for t in range(k.shape[-3]):
        key, step, state = k[..., t, :, None, :], beta[..., t, :, None, None], state * decay[..., t, :, None, :]
        state = state - step * (state @ key.mT) @ key + step * v[..., t, :, :, None] @ key
        rows.append((state @ q[..., t, :, :, None])[..., 0])
    return torch.stack(rows, dim=-3)


def assert_same_with_gradients(actual, expected, tensors):
    """And so are the gradients of a random function of both."""
    torch.testing.assert_close(actual, expected)
    weight = torch.randn_like(actual)
    gradients = (torch.autograd.grad((y * weight).sum(), tensors, retain_graph=True) for y in (actual, expected))
    torch.testing.assert_close(*gradients)
