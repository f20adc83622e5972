"""A base class for mixers that project their input, mix over time and project the result. Others can ignore it."""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixerlab.kernels.fused.linear import join_rows, linear
from mixerlab.mixers.base import SequenceMixer
from mixerlab.mixers.cache import State, recompute

# Columns. On an H200 the product of 3 x 131,072 bf16 rows of 128 takes 304 us for 520 columns and 148 for 544, 155
# for 392 and 120 for 416: other widths get the library's small or badly filled tiles.
ALIGNMENT = 32


def must_be_called(module: nn.Module) -> bool:
    """Whether the module has hooks or a `forward` of its own, as an adapter has, which run only if it is called."""
    return not type(module).forward.__module__.startswith("torch.nn.") or bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


class ProjectedMixer(SequenceMixer):
    """`project_out(mix(project(x)))`. A subclass makes the linear layers, names them, and writes `mix`.

    All input projections are one matrix product, which reads `x` once. They stay separate parameters, which Muon
    orthogonalises one by one, and training lays those of one shape side by side, so that joining them copies nothing.
    If one of the layers has hooks or is an adapter, all are called, which gives the same within rounding.

    Attributes:
        input_projections: the names of the `nn.Linear`s that read `x`, in the order in which `mix` gets their results.
        output_projection: the name of the `nn.Linear` behind `mix`.
        biases_in_mix: of the input projections, those whose bias `mix` adds. `project` adds the others.
    """

    input_projections: tuple[str, ...]  # an option may add one
    output_projection: ClassVar[str] = "o_proj"
    biases_in_mix: ClassVar[frozenset[str]] = frozenset()

    def mix(self, projected: Tensor) -> Tensor:
        """What the mixer does with its projected input: `[B, T, C]` to what the output projection reads.

        `projected` has the results of all input projections side by side, and where there are several, columns of
        zeros behind them up to a multiple of 32.
        """
        raise NotImplementedError(f"{type(self).__name__} has no mix")

    def mix_from(self, projected: Tensor, state: State) -> Tensor:
        """What `mix` gives of the next tokens, at least one; by default from all so far, slow.

        A subclass with a state of its own writes this method and `init_state`.
        """
        return recompute(self.mix, projected, state)

    @torch.no_grad()
    def prefill(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        if not x.shape[1] or type(self).forward is not ProjectedMixer.forward:
            return super().prefill(x, state)
        return self.project_out(self.mix_from(self.project(x), state)), state

    def forward(self, x: Tensor) -> Tensor:
        return self.project_out(self.mix(self.project(x)))

    def project(self, x: Tensor) -> Tensor:
        """`[..., d_model]` to the `[..., C]` that `mix` gets, each position by itself."""
        layers: dict[str, nn.Linear] = {name: getattr(self, name) for name in self.input_projections}
        widths = [layer.out_features for layer in layers.values()]
        padding = -sum(widths) % ALIGNMENT if len(widths) > 1 else 0
        called = any(map(must_be_called, layers.values()))
        if called:
            projected = F.pad(torch.cat([layer(x) for layer in layers.values()], dim=-1), (0, padding))
        else:
            weights = [layer.weight for layer in layers.values()]
            if padding:
                weights.append(weights[0].new_zeros(padding, weights[0].shape[1]))
            projected = linear(x, join_rows(*weights) if len(weights) > 1 else weights[0])
        # A layer adds its bias when it is called, and the product adds none.
        biases = [layer.bias if called == (name in self.biases_in_mix) else None for name, layer in layers.items()]
        if all(bias is None for bias in biases):
            return projected
        zeros = map(projected.new_zeros, widths)
        bias = F.pad(torch.cat([z if b is None else b for z, b in zip(zeros, biases, strict=True)]), (0, padding))
        return projected - bias.to(projected.dtype) if called else projected + bias.to(projected.dtype)

    def project_out(self, mixed: Tensor) -> Tensor:
        """What `mix` gives, `[B, T, ...]`, to the mixer's output `[B, T, d_model]`."""
        layer = getattr(self, self.output_projection)
        if must_be_called(layer):
            return layer(mixed)
        y = linear(mixed, layer.weight)
        return y if layer.bias is None else y + layer.bias.to(y.dtype)
