"""The values that a model starts with."""

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

# Six standard errors of a sample's standard deviation: each is at most 0.71 / sqrt(n) of it, for n uniform or normal
# values.
TOLERANCE = 4.2
# Standard deviation of initial linear weights; fan_in: 1 / sqrt(fan_in) (LeCun et al. 1998); None: PyTorch's default.
LinearStd = float | Literal["fan_in"] | None


def initialise(model: nn.Module, linear_std: LinearStd, redraw_all: bool = False) -> None:
    """Embedding N(0, 0.02), linear weights N(0, `linear_std`) or uniform in +-1/sqrt(fan_in) if it is None, biases 0.

    A frozen parameter is left alone. So is one that its mixer started on purpose (attribute `_no_reinit`), and so are a
    mixer's own embeddings; unless `redraw_all`, as mad-lab does. A parametrized weight
    (`torch.nn.utils.parametrizations`) gets the values that its parametrization makes of the drawn ones, and stays as
    it is where that has no `right_inverse`.

    Args:
        model: its attribute `embedding` embeds the tokens.
    """

    def is_free(parameter: Tensor) -> bool:
        return parameter.requires_grad and (redraw_all or not hasattr(parameter, "_no_reinit"))

    for module in model.modules():
        if isinstance(module, nn.Embedding) and (module is model.embedding or (redraw_all and is_free(module.weight))):
            nn.init.normal_(module.weight, std=0.02)
        elif isinstance(module, nn.Linear):
            if module.bias is not None and is_free(module.bias):
                nn.init.zeros_(module.bias)
            if (std := _std_of(module, linear_std)) is None:
                continue
            if parametrize.is_parametrized(module, "weight"):  # which computes the weight anew each time
                own = module.get_submodule("parametrizations.weight")
                if all(map(is_free, own.parameters())) and all(
                    hasattr(each, "right_inverse") for each in own.children()
                ):
                    module.weight = nn.init.normal_(torch.empty_like(module.weight), std=std)
            elif is_free(module.weight):
                nn.init.normal_(module.weight, std=std)


def _std_of(linear: nn.Linear, linear_std: LinearStd) -> float | None:
    return linear.in_features**-0.5 if linear_std == "fan_in" else linear_std


def overwritten(mixer: nn.Module, linear_std: LinearStd) -> Iterator[str]:
    """Names of parameters that `initialise` overwrites although the mixer seems to have set them on purpose.

    That is, values that look neither like PyTorch's default, uniform in +-1/sqrt(fan_in), nor like what `initialise`
    draws, and biases other than zero. Small tensors may be missed.
    """
    for name, module in mixer.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        bound = module.in_features**-0.5 if module.in_features else 0.0
        std = _std_of(module, linear_std)
        for kind, parameter in module.named_parameters(recurse=False):
            redrawn = std is not None if kind == "weight" else bool(parameter.any())
            kept = hasattr(parameter, "_no_reinit") or not parameter.requires_grad
            if not redrawn or kept or parameter.numel() < 2:
                continue
            is_default = parameter.abs().max().item() <= 1.001 * bound and _has_std(parameter, bound / 3**0.5)
            if not is_default and not (kind == "weight" and std and _has_std(parameter, std)):
                yield f"{name}.{kind}" if name else kind


def _has_std(parameter: Tensor, std: float) -> bool:
    """Whether values around zero with this standard deviation could be these; a constant is no such sample."""
    found = parameter.square().mean().sqrt().item()
    return bool(parameter.min() < parameter.max()) and abs(found - std) <= TOLERANCE / parameter.numel() ** 0.5 * std
