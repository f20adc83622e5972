"""Value averaging: attention with uniform weights (Parallax, section Connection to Other Attention Mechanisms)."""

import math

import torch
from torch import Tensor, nn

from mixerlab.kernels.softmax_attention import attention_backend, softmax_attention
from mixerlab.mixers.cache import State
from mixerlab.mixers.projected import ProjectedMixer


class ValueAverage(ProjectedMixer):
    """`o_t = 1/t sum_{s <= t} v_s`, projected out.

    It is softmax attention with queries of zero, which its kernels compute, and linear attention with an intercept
    whose probe is zero.

    Args:
        d_model: width.
    """

    input_projections = ("v_proj",)

    def __init__(self, d_model: int):
        super().__init__()
        self.d_model = d_model
        self.v_proj, self.o_proj = (nn.Linear(d_model, d_model, bias=False) for _ in range(2))
        self.head_dim = math.gcd(d_model, 64)  # of the kernels only: a mean knows no heads

    def mix(self, projected: Tensor) -> Tensor:
        v = projected.unflatten(-1, (-1, self.head_dim))
        zeros = torch.zeros_like(v)
        return softmax_attention(zeros, zeros, v).flatten(2)

    def init_state(self, batch: int, max_len: int, device: torch.device, dtype: torch.dtype) -> State:
        """The mean of the values, and of how many tokens."""
        wide = torch.promote_types(dtype, torch.float32)
        return {
            "mean_v": torch.zeros(batch, self.d_model, device=device, dtype=wide),
            "length": torch.zeros(batch, 1, device=device, dtype=torch.int32),
        }

    def mix_from(self, projected: Tensor, state: State) -> Tensor:
        """Token by token, from the recurrence."""
        mean_v, length, outputs = state["mean_v"], state["length"], []
        for v in projected.unbind(1):
            length += 1
            mean_v += (v - mean_v) / length
            outputs.append(mean_v.to(v.dtype, copy=True))
        return torch.stack(outputs, dim=1)

    def state_size(self, seq_len: int) -> int:
        """The mean of the values."""
        return self.d_model

    def resolved_backend(self, device: torch.device, dtype: torch.dtype) -> str:
        return attention_backend(device, dtype, self.head_dim)
