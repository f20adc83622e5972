"""Prints how much models differ between kernels and reference: `python run_with_kernels.py [MODEL...]`.

On a CPU, `auto` means the reference; this script makes it mean the kernels, in Triton's interpreter. The result is
JSON: the largest relative error of logits and gradients for each kind of model.
"""

import json
import sys
from functools import partial

import torch

from mixerlab.kernels.common import dispatch

resolve, prefer_triton = dispatch.resolve_backend, False


def resolve_as_asked(backend, device, supported=True, why=""):
    if prefer_triton and backend == "auto" and supported:
        return "triton"
    return resolve(backend, device, supported, why)


dispatch.resolve_backend = resolve_as_asked  # before the operators import it

from parallax_cases import operators_of  # noqa: E402

from mixerlab.mixers.attn import Attention  # noqa: E402
from mixerlab.models.auto_encoder import AutoEncoder  # noqa: E402
from mixerlab.models.language_model import LanguageModel  # noqa: E402
from mixerlab.models.stream import ALL  # noqa: E402

WIDTH, LENGTH = 16, 9
# Layers, vocabulary, scored positions, frozen parameters, and whether attention norms its q and k. Above a vocabulary
# of 32 another kernel sums the gradients.
MODELS = {
    "one layer": (1, 7, ALL, "", False),
    "one layer, some positions": (1, 7, slice(-3, None), "", False),
    "two layers, some positions": (2, 7, slice(2, 4), "", True),
    "three layers": (3, 40, ALL, "", False),
    "frozen table": (2, 7, ALL, "embedding", False),
    "frozen mixers": (2, 7, ALL, "mixer.", True),
    "frozen norms": (2, 7, ALL, "norm", True),
    "all but the head frozen": (2, 7, ALL, "blocks", False),
}


def results(kind, n_layers, vocabulary, scored, frozen, qk_norm):
    """Logits, and the gradients of all parameters that are not frozen."""
    torch.manual_seed(0)

    def make_mixer():
        return Attention(WIDTH, num_heads=2, qk_norm=qk_norm)

    if kind is AutoEncoder:
        model = AutoEncoder(vocabulary, LENGTH, WIDTH, n_layers, make_mixer)
    else:
        model = LanguageModel(vocabulary, WIDTH, n_layers, make_mixer)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not frozen or frozen not in name)
    logits = model(torch.randint(vocabulary, (2, LENGTH)), scored)
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [logits.detach(), *torch.autograd.grad(logits.square().sum(), wanted)]


def main(*names: str) -> None:
    """For the models of these names, or for all."""
    global prefer_triton
    errors = {}
    for kind in (LanguageModel, AutoEncoder):
        for name in names or MODELS:
            given = MODELS[name]
            prefer_triton = False
            expected = results(kind, *given)
            prefer_triton = True
            assert "mixerlab::embedded_add_rms_norm" in operators_of(partial(results, kind, *given))
            actual = results(kind, *given)
            error = max(((a - e).norm() / e.norm()).item() for a, e in zip(actual, expected, strict=True))
            errors[f"{kind.__name__}: {name}"] = error
    print(json.dumps(errors))


if __name__ == "__main__":
    main(*sys.argv[1:])
