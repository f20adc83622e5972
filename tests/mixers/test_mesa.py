"""MesaNet as a layer: its formula from x to the output, its start, and replicas under vmap."""

import torch
import torch.nn.functional as F
from formulas import convolved, of_length_one

from mixerlab.mixers.mesa import MesaNet


def layer_step_by_step(mixer, x):
    """The layer written out with plain loops and dense solves, `x` `[T, d_model]`."""
    heads, dim = mixer.num_heads, mixer.head_dim

    q, k = (of_length_one(convolved(mixer, name, x)) for name in "qk")
    v = (x @ mixer.v_proj.weight.T).view(-1, heads, dim)
    gamma, beta = mixer.a_proj(x).sigmoid(), mixer.b_proj(x).sigmoid()
    ridge = (F.softplus(mixer.ridge_logit) + mixer.ridge_lower_bound).view(heads, dim)
    key_states, value_states = torch.zeros(2, heads, dim, dim, dtype=x.dtype)
    rows = []
    for t in range(len(x)):
        outputs = []
        for h in range(heads):
            key_states[h] = gamma[t, h] * key_states[h] + beta[t, h] * torch.outer(k[t, h], k[t, h])
            value_states[h] = gamma[t, h] * value_states[h] + beta[t, h] * torch.outer(v[t, h], k[t, h])
            o = value_states[h] @ torch.linalg.inv(key_states[h] + ridge[h].diag()) @ q[t, h]
            outputs.append(o / (o.square().mean() + 1e-5).sqrt() * mixer.norm.weight)
        rows.append(torch.cat(outputs))
    return torch.stack(rows) @ mixer.o_proj.weight.T


def test_equals_the_formula():
    torch.manual_seed(0)
    mixer = MesaNet(16, num_heads=2, chunk_size=4).double()
    for parameter in (mixer.norm.weight, mixer.ridge_logit, mixer.a_proj.bias):
        torch.nn.init.normal_(parameter)
    x = torch.randn(1, 11, 16, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(mixer(x)[0], layer_step_by_step(mixer, x[0]))


def test_the_ridge_starts_at_one_and_stays_above_its_bound():
    mixer = MesaNet(16)
    torch.testing.assert_close(F.softplus(mixer.ridge_logit) + 0.25, torch.ones(16))
    assert mixer.ridge_logit._no_reinit
