"""What the formulas of several mixers share."""

import torch
import torch.nn.functional as F


def convolved(mixer, name, x):
    """A projection of `x` `[T, d_model]` and its convolution, written out, `[T, H, D]`."""
    y = x @ getattr(mixer, f"{name}_proj").weight.T
    if mixer.d_conv:
        taps = getattr(mixer, f"{name}_conv").weight[:, 0]
        steps = [[taps[:, -1 - back] * y[t - back] for back in range(min(t + 1, taps.shape[1]))] for t in range(len(x))]
        y = F.silu(torch.stack([sum(step) for step in steps]))
    return y.unflatten(-1, (mixer.num_heads, -1))


def of_length_one(y):
    return y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def delta_rule(q, k, v, decay, beta):
    """`S <- S diag(decay) (I - beta k k^T) + beta v k^T`, read at q; values `[T, H, W]`, a decay for each channel."""
    (length, heads, dim), rows = q.shape, []
    identity, states = torch.eye(dim, dtype=q.dtype), [q.new_zeros(v.shape[-1], dim) for _ in range(heads)]
    for t in range(length):
        for h in range(heads):
            forgotten = states[h] @ decay[t, h].diag() @ (identity - beta[t, h] * torch.outer(k[t, h], k[t, h]))
            states[h] = forgotten + beta[t, h] * torch.outer(v[t, h], k[t, h])
        rows.append(torch.stack([states[h] @ q[t, h] for h in range(heads)]))
    return torch.stack(rows)


def normed(o, gain):
    return o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt() * gain
