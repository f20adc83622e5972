"""Mamba-1: a selective state space layer (Gu and Dao 2023, section 3 and figure 3)."""

import math

import torch
from torch import Tensor, nn

from mixerlab.kernels.fused.linear import linear
from mixerlab.kernels.selective_scan import selective_scan_backend
from mixerlab.kernels.selective_scan.block import mamba_block
from mixerlab.kernels.selective_scan.reference import selective_scan_steps
from mixerlab.mixers.base import check_sizes, keep_initial_values
from mixerlab.mixers.cache import State, behind_tail, convolution_tail
from mixerlab.mixers.convolution import ShortConvolution
from mixerlab.mixers.gates import time_step_bias
from mixerlab.mixers.projected import ProjectedMixer


class Mamba(ProjectedMixer):
    """Short convolution, then a scan whose step size, input and output maps depend on the token, then a gate.

    `A_log` is `[d_inner, d_state]`, yet no matrix (one rate per state): Muon takes it only with
    `optimizer.filters=muon`.

    Args:
        d_model: width of the layer's input and output.
        d_state: N, elements of state per inner channel.
        expand: inner channels per channel of the model.
        d_conv: positions that the short convolution sees.
        dt_rank: rank of the projection to the step sizes; `None` takes d_model / 16, rounded up.
        dt_min, dt_max: the step sizes start log-uniform between these.
        zero_dt_bias: the bias of the step sizes starts at zero instead, steps at softplus(0) = 0.69. mad-lab zeroed it
            in its language model until December 2024.
        backend: of the scan: `auto`, `reference` or `triton`.

    Raises:
        ValueError: a size below 1, or not 0 < dt_min <= dt_max.
    """

    input_projections = ("in_proj",)
    output_projection = "out_proj"

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        expand: int = 2,
        d_conv: int = 4,
        dt_rank: int | None = None,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        zero_dt_bias: bool = False,
        backend: str = "auto",
    ):
        super().__init__()
        dt_rank = math.ceil(d_model / 16) if dt_rank is None else dt_rank
        check_sizes(d_state=d_state, expand=expand, d_conv=d_conv, dt_rank=dt_rank)
        if not 0 < dt_min <= dt_max:
            raise ValueError(f"mixer.dt_min={dt_min}, mixer.dt_max={dt_max}: choose 0 < dt_min <= dt_max")
        self.d_inner, self.d_state, self.d_conv, self.dt_rank = expand * d_model, d_state, d_conv, dt_rank
        self.backend = backend

        self.in_proj = nn.Linear(d_model, 2 * self.d_inner, bias=False)
        self.conv = ShortConvolution(self.d_inner, d_conv, bias=True)
        self.x_proj = nn.Linear(self.d_inner, dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(dt_rank, self.d_inner)
        self.A_log = nn.Parameter(torch.arange(1.0, d_state + 1).log().repeat(self.d_inner, 1))
        self.D = nn.Parameter(torch.ones(self.d_inner))
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)

        # PyTorch's default already, and the model redraws it; without this line the other values would change.
        nn.init.uniform_(self.dt_proj.weight, -(dt_rank**-0.5), dt_rank**-0.5)
        if zero_dt_bias:
            nn.init.zeros_(self.dt_proj.bias)
            return
        with torch.no_grad():
            self.dt_proj.bias.copy_(time_step_bias(self.d_inner, dt_min, dt_max))
        keep_initial_values(self.dt_proj.bias)

    def mix(self, projected: Tensor) -> Tensor:
        assert self.conv.bias is not None
        return mamba_block(
            projected,
            self.conv.weight.squeeze(1),
            self.conv.bias,
            self.x_proj.weight,
            self.dt_proj.weight,
            self.dt_proj.bias,
            self.A_log,
            self.D,
            backend=self.backend,
        )

    def init_state(self, batch: int, max_len: int, device: torch.device, dtype: torch.dtype) -> State:
        """The scan's state, and what the convolution looks back at."""
        wide = torch.promote_types(dtype, torch.float32)
        return {
            "scan": torch.zeros(batch, self.d_inner, self.d_state, device=device, dtype=wide),
            "tail": convolution_tail(batch, self.d_conv, self.d_inner, device, dtype),
        }

    def mix_from(self, projected: Tensor, state: State) -> Tensor:
        """Token by token, from the recurrence."""
        x, z = behind_tail(state["tail"], projected).chunk(2, dim=-1)
        u, z = self.conv(x)[:, self.d_conv - 1 :], z[:, self.d_conv - 1 :]
        dt, B, C = linear(u, self.x_proj.weight).split((self.dt_rank, self.d_state, self.d_state), dim=-1)
        delta, A = linear(dt, self.dt_proj.weight), -self.A_log.exp()
        return selective_scan_steps(u, delta, self.dt_proj.bias, A, B, C, self.D, z, state["scan"])

    def resolved_backend(self, device: torch.device, dtype: torch.dtype) -> str:
        return selective_scan_backend(device, dtype, self.d_state, self.backend)
