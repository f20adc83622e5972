"""Prints how much models differ between kernels and reference: `python run_with_kernels.py`.

On a CPU, `auto` means the reference; this script makes it mean the kernels, in Triton's interpreter. The result is
JSON: the largest relative error of logits and gradients for each model.
"""

import json
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
# Layers, vocabulary, scored positions, and whether attention norms its q and k. Above a vocabulary of 32 another kernel
# sums the gradients.
MODELS = [(1, 40, ALL, False), (2, 7, slice(2, 4), True)]


def results(kind, n_layers, vocabulary, scored, qk_norm):
    """Logits, and the gradients of all parameters."""
    torch.manual_seed(0)
    make_mixer = partial(Attention, WIDTH, num_heads=2, qk_norm=qk_norm)
    sizes = (LENGTH, WIDTH) if kind is AutoEncoder else (WIDTH,)
    model = kind(vocabulary, *sizes, n_layers, make_mixer)
    logits = model(torch.randint(vocabulary, (2, LENGTH)), scored)
    return [logits.detach(), *torch.autograd.grad(logits.square().sum(), list(model.parameters()))]


def main() -> None:
    global prefer_triton
    errors = {}
    for kind in (LanguageModel, AutoEncoder):
        for number, options in enumerate(MODELS):
            prefer_triton = False
            expected = results(kind, *options)
            prefer_triton = True
            assert "mixerlab::embedded_add_rms_norm" in operators_of(partial(results, kind, *options))
            actual = results(kind, *options)
            error = max(((a - e).norm() / e.norm()).item() for a, e in zip(actual, expected, strict=True))
            errors[f"{kind.__name__} {number}"] = error
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
