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
