"""Value averaging: attention with uniform weights (Parallax, section Connection to Other Attention Mechanisms)."""

import math

import torch
from torch import Tensor, nn

from mixerlab.kernels.softmax_attention import attention_backend
from mixerlab.mixers.cache import State
from mixerlab.mixers.means import means
from mixerlab.mixers.projected import ProjectedMixer


class ValueAverage(ProjectedMixer):
    """`o_t = 1/t sum_{s <= t} v_s`, projected out.

    It is softmax attention with queries of zero, and linear attention with an intercept whose probe is zero.

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
        return means(projected.unflatten(-1, (-1, self.head_dim))).flatten(2)

    def init_state(self, batch: int, max_len: int, device: torch.device, dtype: torch.dtype) -> State:
        """The mean of the values, and of how many tokens."""
        wide = torch.promote_types(dtype, torch.float32)
        return {
            "means": torch.zeros(batch, self.d_model // self.head_dim, self.head_dim, device=device, dtype=wide),
            "length": torch.zeros(batch, 1, 1, device=device, dtype=torch.int32),
        }

    def mix_from(self, projected: Tensor, state: State) -> Tensor:
        return means(projected.unflatten(-1, (-1, self.head_dim)), state).flatten(2)

    def resolved_backend(self, device: torch.device, dtype: torch.dtype) -> str:
        return attention_backend(device, dtype, self.head_dim)
