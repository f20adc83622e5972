"""Linear attention without feature map and intercept (Katharopoulos et al. 2020), its sums divided by the position."""

import torch
from torch import Tensor, nn

from mixerlab.kernels.fused.heads import Form, Part, split_heads
from mixerlab.mixers.base import NORM_EPS, head_dim_of
from mixerlab.mixers.cache import State
from mixerlab.mixers.projected import ProjectedMixer

CHUNK_SIZE = 128  # positions whose scores are computed at once


class LinearAttention(ProjectedMixer):
    """`o_t = 1/t sum_{s <= t} v_s (k_s . q_t)`, projected out.

    It is affine linear attention without means of keys and values, with q for its probe -rho (Parallax, section
    Connection to Other Attention Mechanisms), and has no positions, decay or convolution either.

    Args:
        d_model: width; `num_heads` must divide it.
        num_heads: heads of size d_model / num_heads.
        qk_norm: RMSNorm on each head's q and k.

    Raises:
        ValueError: heads that do not divide the width.
    """

    input_projections = ("q_proj", "k_proj", "v_proj")

    def __init__(self, d_model: int, num_heads: int = 2, qk_norm: bool = True):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, head_dim_of(d_model, num_heads)
        self.qk_norm = qk_norm
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        if qk_norm:
            self.q_norm, self.k_norm = (nn.RMSNorm(self.head_dim, eps=NORM_EPS) for _ in range(2))

    def mix(self, projected: Tensor) -> Tensor:
        """Chunk by chunk: the scores of a chunk, and the sum over `k v^T` of those before it."""
        memory, outputs = None, []
        wide = torch.promote_types(projected.dtype, torch.float32)
        for q, k, v in zip(*(x.split(CHUNK_SIZE, dim=2) for x in self.heads(projected)), strict=True):
            o = (q @ k.mT).tril() @ v
            outputs.append(o if memory is None else o + q @ memory.to(q.dtype))
            written = (k.mT @ v).to(wide)
            memory = written if memory is None else memory + written
        o = torch.cat(outputs, dim=2)
        positions = torch.arange(1, o.shape[2] + 1, device=o.device)[:, None]
        return (o.to(wide) / positions).to(projected.dtype).transpose(1, 2).flatten(2)

    def heads(self, projected: Tensor) -> tuple[Tensor, ...]:
        """q and k, normed, and v: `[B, num_heads, T, head_dim]` of what `project` gives."""
        forms = (Form.RMS_NORM, Form.RMS_NORM, Form.VIEW) if self.qk_norm else (Form.VIEW,) * 3
        gains = (self.q_norm.weight, self.k_norm.weight) if self.qk_norm else ()
        parts = [Part(self.num_heads, self.head_dim, form) for form in forms]
        return tuple(x.transpose(1, 2) for x in split_heads(projected, parts, gains=gains, eps=NORM_EPS))

    def init_state(self, batch: int, max_len: int, device: torch.device, dtype: torch.dtype) -> State:
        """The sum over `k v^T` of each head, and of how many tokens."""
        memory = batch, self.num_heads, self.head_dim, self.head_dim
        return {
            "memory": torch.zeros(memory, device=device, dtype=torch.promote_types(dtype, torch.float32)),
            "length": torch.zeros(batch, 1, 1, 1, device=device, dtype=torch.int32),
        }

    def mix_from(self, projected: Tensor, state: State) -> Tensor:
        memory, length = state["memory"], state["length"]
        with torch.autocast(projected.device.type, enabled=False):
            q, k, v = (x.to(memory.dtype) for x in self.heads(projected))
            positions = length + torch.arange(1, q.shape[2] + 1, device=q.device)[:, None]
            o = ((q @ k.mT).tril() @ v + q @ memory) / positions
            memory += k.mT @ v
            length += q.shape[2]
        return o.to(projected.dtype).transpose(1, 2).flatten(2)
