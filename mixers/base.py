"""The contract of a sequence mixer. A new mixer subclasses `SequenceMixer` in a file of its own."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mixerlab.mixers.cache import State, recompute

NORM_EPS = 1e-5  # of RMSNorm, added to the mean square


class AttentionParts(NamedTuple):
    """What softmax attention and its relatives compute with, as `mixerlab analyse` measures it.

    Attributes:
        q: queries `[B, T, H, D]`, normed and rotated.
        k, v: keys and values `[B, T, Hkv, D]`, H a multiple of Hkv.
        scale: multiplies q k.
        rho: probes `[B, T, H, D]`, gated, of a mixer that subtracts `Sigma_KV rho`.
        gate: of the probes, `[B, T, H]` in [0, 1].
        seen: which keys (columns) a query sees, bool `[T, T]`; all up to its own by default.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    rho: Tensor | None = None
    gate: Tensor | None = None
    seen: Tensor | None = None


class SequenceMixer(nn.Module):
    """Maps a sequence to a sequence, position by position, looking only backwards.

    A mixer is written for one model. Training runs replicas of it side by side with `torch.func.vmap`, or one after
    another if `vmap` refuses the mixer, which is slower (`mixers/README.md`). `forward` must not write in place into a
    parameter. Register every tensor that it keeps as a parameter or buffer. Under bf16 autocast, keep what needs range
    in float32 yourself.

    Parameters are float32 and trained: weights of `nn.Linear` as matrices (Muon), parameters of two or more axes as
    tables and the others as gains (both Adam; `training.layout.Rule`). With `requires_grad=False` they stay as they
    are, like buffers. Each replica has its own of the buffers that depend on the seed, or that `forward` changes in
    training mode. The model draws the weights of `nn.Linear` from N(0, `model.linear_std`) and sets their biases to
    zero, whatever the mixer gave them, but for a parameter that is marked with `keep_initial_values`.

    `mixers.projected.ProjectedMixer` is for mixers that begin and end with linear layers: it makes those fast.
    """

    def forward(self, x: Tensor) -> Tensor:
        """`x` `[B, T, d_model]` to `[B, T, d_model]`; the output at t depends only on inputs up to t."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def state_size(self, seq_len: int) -> int:
        """How many elements one layer carries to predict the token after `seq_len` tokens (its memory); at least 1.

        By default the floating-point elements that `init_state` makes; a mixer without one writes this method.
        """
        state = self.init_state(1, seq_len, torch.device("meta"), torch.float32)
        if state:
            return sum(x.numel() for x in state.values() if x.is_floating_point())
        raise ValueError(
            f"{type(self).__name__} has no state_size: write state_size(self, seq_len), the number of elements that a"
            " layer carries from token to token"
        )

    def init_state(self, batch: int, max_len: int, device: torch.device, dtype: torch.dtype) -> State:
        """The state of `batch` sequences before their first token, for at most `max_len` tokens.

        Args:
            dtype: of the layer's activations: autocast's where it is on, else that of the parameters.
        """
        return {}

    @torch.no_grad()
    def prefill(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """The outputs `[B, T, d_model]` of the next T tokens, `x` of the same shape, and the state behind them.

        They are those that `forward` gives, of all tokens so far, for the last T. By default they are computed that
        way, which is slow: each call computes the whole prefix again, and keeps all inputs. A mixer with a state of its
        own writes `init_state` and this method, which changes the state's tensors in place: then a CUDA graph can
        capture it. T may be 0.
        """
        return recompute(self, x, state) if x.shape[1] else x, state

    def attention_parts(self, x: Tensor) -> AttentionParts | None:
        """What `forward` computes with for the input `x` `[B, T, d_model]`; None if it is no softmax attention."""
        return None

    def resolved_backend(self, device: torch.device, dtype: torch.dtype) -> str:
        """What computes the mixing for inputs of `dtype` on `device`; goes into the record.

        `torch` says that the mixer is plain PyTorch, which runs through `torch.compile` on a GPU.
        """
        return "torch"


def keep_initial_values(parameter: Tensor) -> None:
    """Keeps the model from redrawing this parameter of an `nn.Linear` when it is built.

    Sets the attribute `_no_reinit`. The auto-encoder redraws it all the same if `model.autoencoder_redraw_all=true`.
    """
    parameter._no_reinit = True  # type: ignore[attr-defined]  # an attribute of ours


def split_rows(weight: Tensor, sizes: Sequence[int]) -> None:
    """Muon treats these groups of a matrix's rows by themselves: `split_rows(qkv.weight, (d, d, d))`, or one per head.

    Sets the attribute `_matrices`. The weight of an `nn.Linear` or an `nn.Parameter` of two axes.

    Raises:
        ValueError: sizes whose sum is not the number of rows.
    """
    rows, columns = weight.shape
    if sum(sizes) != rows:
        raise ValueError(f"split_rows: the sizes {list(sizes)} must add up to the {rows} rows of the weight")
    weight._matrices = tuple((size, columns) for size in sizes)  # type: ignore[attr-defined]


def as_matrix(parameter: Tensor) -> None:
    """Muon takes an `nn.Parameter` as the weight of a linear layer; with three axes, as a stack of matrices.

    Sets the attribute `_matrices`.
    """
    *stack, rows, columns = parameter.shape
    parameter._matrices = ((rows, columns),) * math.prod(stack)  # type: ignore[attr-defined]


def kv_heads_of(num_heads: int, num_kv_heads: int | None) -> int:
    """How many heads keys and values have, `num_heads` by default; `ValueError` if they do not divide the queries'."""
    if num_kv_heads is None:
        return num_heads
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ValueError(
            f"mixer.num_kv_heads={num_kv_heads} does not divide mixer.num_heads={num_heads}: choose a divisor"
        )
    return num_kv_heads


def check_sizes(least: int = 1, **sizes: int | None) -> None:
    """`ValueError` for a size below `least`. None passes."""
    for name, value in sizes.items():
        if value is not None and value < least:
            raise ValueError(f"mixer.{name}={value} must be at least {least}")


def check_positive(**numbers: float | None) -> None:
    """`ValueError` for a number that is not finite and above 0. None passes."""
    for name, value in numbers.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"mixer.{name}={value} must be a finite number above 0")


def head_dim_of(d_model: int, num_heads: int, head_dim: int | None = None, *, rope: bool = False) -> int:
    """The size of one head, d_model / num_heads by default; `ValueError` if that is none, or RoPE gets an odd one."""
    check_sizes(num_heads=num_heads, head_dim=head_dim)
    given = f"mixer.head_dim={head_dim}"
    if head_dim is None:
        given = f"mixer.num_heads={num_heads} at d_model={d_model}"
        if d_model % num_heads:
            raise ValueError(
                f"mixer.num_heads={num_heads} does not divide d_model={d_model}: choose a divisor of {d_model}"
            )
        head_dim = d_model // num_heads
    if rope and head_dim % 2:
        raise ValueError(f"{given} gives heads of {head_dim}, and RoPE rotates pairs: choose an even size")
    return head_dim
