"""Affine MesaNet: MesaNet with an intercept (Parallax, section Connection to Other Attention Mechanisms)."""

import torch
from torch import Tensor

from mixerlab.mixers.cache import State, behind_tail
from mixerlab.mixers.means import TINY, before, weighted_means
from mixerlab.mixers.mesa import MesaNet


class AffineMesaNet(MesaNet):
    """`o_t = mean(v) + G_t (H_t + Lambda)^{-1} (q_t - mean(k))`: ridge regression with an intercept.

    The means have the weights of MesaNet's sums, beta and their decay, and H and G are the sums over
    `(k - mean(k)) (k - mean(k))^T` and `(v - mean(v)) (k - mean(k))^T`. The intercept has no ridge. In the paper's
    terms the probe is `-(H_t + Lambda)^{-1} (mean(k) - q_t)`, times minus the covariance; its H is divided by t, and
    the ridge here is t times its own, as in MesaNet and in local linear attention.

    With m the mean before position t, and n the sum of the weights before and with it, the sums follow the recurrence
    `H_t = gamma_t H_{t-1} + beta_t (gamma_t n_{t-1} / n_t) (k_t - m) (k_t - m)^T`, and G alike (Welford 1962). So
    MesaNet's operator solves it, given other keys, values and beta.

    Arguments and errors are those of `MesaNet`.
    """

    def mix(self, projected: Tensor) -> Tensor:
        q, k, v, log_decay, beta = self.parts(projected)
        with torch.autocast(projected.device.type, enabled=False):
            means, share = weighted_means(torch.cat((k, v), dim=-1), log_decay, beta)
            mean_k, mean_v = means.chunk(2, dim=-1)
            earlier_k, earlier_v = before(means).chunk(2, dim=-1)
            o = self.solved(q - mean_k, k - earlier_k, v - earlier_v, log_decay, beta * (1 - share))
            return self.behind(mean_v + o)

    def init_state(self, batch: int, max_len: int, device: torch.device, dtype: torch.dtype) -> State:
        """MesaNet's, of keys and values without their means; the means side by side, and the sum of their weights."""
        state = super().init_state(batch, max_len, device, dtype)
        means = state["memory"].new_zeros(batch, self.num_heads, 2 * self.head_dim)
        return state | {"means": means, "weight": means.new_zeros(batch, self.num_heads, 1)}

    def mix_from(self, projected: Tensor, state: State) -> Tensor:
        """The means token by token, and then the regression."""
        parts = self.parts(behind_tail(state["tail"], projected))
        q, k, v, log_decay, beta = (x[:, -projected.shape[1] :].to(state["means"].dtype) for x in parts)
        pairs, earlier, later, shares = torch.cat((k, v), dim=-1), [], [], []
        for t in range(pairs.shape[1]):
            state["weight"] *= log_decay[:, t, :, None].exp()
            state["weight"] += beta[:, t, :, None]
            earlier.append(state["means"].clone())
            shares.append(beta[:, t, :, None] / state["weight"].clamp_min(TINY))
            state["means"] += shares[-1] * (pairs[:, t] - state["means"])
            later.append(state["means"].clone())
        k, v = (pairs - torch.stack(earlier, dim=1)).chunk(2, dim=-1)
        mean_k, mean_v = torch.stack(later, dim=1).chunk(2, dim=-1)
        beta = beta * (1 - torch.stack(shares, dim=1).squeeze(-1))
        o = self.solved(q - mean_k, k, v, log_decay, beta, state["memory"])
        return self.behind(mean_v + o).to(projected.dtype)

    def state_size(self, seq_len: int) -> int:
        """MesaNet's, and two vectors and a number per head."""
        return super().state_size(seq_len) + self.num_heads * (2 * self.head_dim + 1)
