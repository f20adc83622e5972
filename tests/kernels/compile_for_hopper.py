"""Compiles every Triton kernel for an H100 or H200 without one: `python compile_for_hopper.py`.

The interpreter runs kernels as Python, and takes much that the compiler refuses. Here launches are compiled, down to
machine code, and not made: the operators' results are nonsense, only that they compile counts. Prints the modules
whose kernels were compiled.
"""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
import triton
from every_mixer import MIXERS, mixer_of, prefer_kernels
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from mixerlab.kernels.common import dispatch
from mixerlab.kernels.common.ahead import compiling_ahead
from mixerlab.kernels.fused import cross_entropy, swiglu_packed
from mixerlab.kernels.optimizer.join_columns import join_columns
from mixerlab.kernels.optimizer.newton_schulz import orthogonalise
from mixerlab.kernels.optimizer.population_step import update_moments, update_parameters
from mixerlab.kernels.selective_scan import selective_scan
from mixerlab.models.language_model import LanguageModel

BF16 = torch.bfloat16
SHARED_MEMORY = 227 * 1024  # bytes that a program may have


HOPPER = SimpleNamespace(  # what Triton asks the driver of a GPU in order to compile
    get_current_target=lambda: GPUTarget("cuda", 90, 32),
    get_current_device=lambda: 0,
    get_current_stream=lambda device=0: 0,
    get_active_torch_device=lambda: torch.device("cpu"),
    get_device_interface=lambda: torch.cuda,
)


def differentiate(operator, *shapes, dtype=BF16, **given) -> None:
    inputs = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    results = operator(*inputs, **given)
    results = [results] if isinstance(results, torch.Tensor) else results
    total = sum(result.float().sum() for result in results if result.requires_grad)
    torch.autograd.grad(total, inputs, allow_unused=True)


def run_attention() -> None:
    from mixerlab.kernels.parallax.decode.operator import decode
    from mixerlab.kernels.parallax.operator import parallax_triton
    from mixerlab.kernels.softmax_attention.operator import short_attention

    differentiate(short_attention, *[(2, 128, 2, 64)] * 3)
    for length, heads in ((128, 2), (256, 1), (256, 2), (256, 8)):  # one launch each way; the kernels for any length
        differentiate(parallax_triton, *[(2, length, heads, 128 // heads)] * 4, scale=0.125, window=None)
    lengths = torch.tensor([300, 2], dtype=torch.int32)
    shapes = ((2, 1, 8, 128), (2, 512, 8, 128)), ((2, 8, 8, 64), (2, 512, 2, 64)), ((2, 8, 32, 128), (2, 128, 1, 128))
    for shape, cache in shapes:
        decode(*(torch.randn(x, dtype=BF16) for x in (shape, shape, cache, cache)), lengths, 0.125, None)
    many, cache = (torch.randn(2, length, 256, 128, dtype=BF16) for length in (1, 64))  # heads alone fill the card
    decode(many, many, cache, cache, None, 0.125, 100)


def run_models() -> None:
    """What runs launch: models of every mixer, of short sequences too, and of several vocabularies."""
    cases = [*((name, 256, 16) for name in MIXERS), ("attn", 128, 16), ("parallax", 128, 16)]
    cases += [("attn", 256, vocabulary) for vocabulary in (32, 128, 300)]
    with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", BF16):
        prefer_kernels(patch)
        for name, length, vocabulary in cases:
            model = LanguageModel(vocabulary, 128, 2, partial(mixer_of, name, 128))
            tokens = torch.randint(vocabulary, (2, length))
            cross_entropy(model(tokens), tokens)[0].sum().backward()


def run_others() -> None:
    differentiate(swiglu_packed, (2, 64, 704), backend="triton")
    sequence, vector = (2, 64, 32), (32,)
    shapes = sequence, sequence, vector, (32, 16), (2, 64, 16), (2, 64, 16), vector, sequence
    differentiate(selective_scan, *shapes, dtype=torch.float32, backend="triton")


def run_optimizer() -> None:
    replicas, columns, matrices = 3, 5000, 4000
    first, second, gradient = (torch.zeros(replicas, columns) for _ in range(3))
    counters = {"step": torch.zeros(()), "active": torch.ones(replicas)}
    update_moments(
        gradient, first, second, **counters, steps_taken=torch.zeros(replicas), matrices=matrices, momentum=0.95,
        nesterov=False, betas=(0.8, 0.95), max_norm=1.0, backend="triton",
    )  # fmt: skip
    update_parameters(
        gradient.clone(), torch.zeros(replicas, matrices), first, second, **counters, lr=torch.ones(replicas),
        column_scale=torch.ones(columns), column_decay=torch.ones(columns), schedule=torch.ones(4, 10), eps=1e-8,
        backend="triton",
    )  # fmt: skip
    join_columns([torch.randn(2, 4, 4), torch.randn(2, 3).to(BF16)], backend="triton")
    orthogonalise(torch.randn(3, 128 * 352), ((128, 352),), 5, backend="triton")


def main() -> None:
    modules = set()

    def compiled(src, metadata, **_):
        modules.add(src.fn.__module__)
        assert metadata["shared"] <= SHARED_MEMORY, (src.name, metadata["shared"])

    triton.knobs.compilation.listener = compiled
    dispatch.runs_triton = lambda device: True  # the CPU that is here would be refused
    driver.set_active(HOPPER)
    with compiling_ahead():
        for run in (run_attention, run_models, run_others, run_optimizer):
            run()
    print("\n".join(sorted(modules)))


if __name__ == "__main__":
    main()
