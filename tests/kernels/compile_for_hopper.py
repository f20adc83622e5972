"""Compiles every Triton kernel for an H100 or H200 without one: `python compile_for_hopper.py [GROUP...]`.

The interpreter runs kernels as Python, and takes much that the compiler refuses. Here launches are compiled, down to
machine code, and not made: the operators' results are nonsense, only that they compile counts. Prints the modules
whose kernels were compiled.
"""

import sys
from functools import partial

import torch
import triton
from every_mixer import mixer_of
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from mixerlab.kernels.common import dispatch
from mixerlab.kernels.common.ahead import compiling_ahead
from mixerlab.kernels.fused import (
    Embedded,
    Form,
    Part,
    add_rms_norm,
    cross_entropy,
    embedded_add_rms_norm,
    embedding,
    gated_rms_norm,
    gates,
    linear,
    norm_heads,
    norm_linear,
    rms_norm,
    rotary_heads,
    split_heads,
    swiglu_mlp,
    swiglu_packed,
)
from mixerlab.kernels.fused.heads.parts import columns_of
from mixerlab.kernels.local_linear import solved_probe
from mixerlab.kernels.optimizer.join_columns import join_columns
from mixerlab.kernels.optimizer.newton_schulz import orthogonalise
from mixerlab.kernels.optimizer.population_step import update_moments, update_parameters
from mixerlab.kernels.parallax.projected.triton_projection import SHARED_MEMORY as PROJECTION_MEMORY
from mixerlab.kernels.parallax.projected.triton_projection import projection_kernel
from mixerlab.kernels.selective_scan import selective_scan
from mixerlab.kernels.short_convolution.heads import convolve_heads

BF16 = torch.bfloat16
SHARED_MEMORY = 227 * 1024  # bytes that a program may have


class Hopper:
    """What Triton asks the driver of a GPU in order to compile."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=0):
        return 0

    def get_active_torch_device(self):
        return torch.device("cpu")

    def get_device_interface(self):
        return torch.cuda


def differentiate(operator, *shapes, dtype=BF16, **given) -> None:
    inputs = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    results = operator(*inputs, **given)
    results = [results] if isinstance(results, torch.Tensor) else results
    total = sum(result.float().sum() for result in results if result.requires_grad)
    torch.autograd.grad(total, inputs, allow_unused=True)


def run_attention() -> None:
    from mixerlab.kernels.parallax.decode.operator import decode
    from mixerlab.kernels.parallax.operator import parallax_triton
    from mixerlab.kernels.parallax.projected.operator import looked_up, projected
    from mixerlab.kernels.softmax_attention.operator import short_attention

    differentiate(short_attention, *[(2, 128, 2, 64)] * 3)
    for length in (128, 256):  # one launch each way, and the kernels for any length
        differentiate(parallax_triton, *[(2, length, 2, 64)] * 4, scale=0.125, window=None)
    lengths = torch.tensor([300, 2], dtype=torch.int32)
    for shape, cache in (((2, 1, 8, 128), (2, 512, 8, 128)), ((2, 8, 8, 64), (2, 512, 2, 64))):
        decode(*(torch.randn(x, dtype=BF16) for x in (shape, shape, cache, cache)), lengths, 0.125, None)
    many, cache = (torch.randn(2, length, 256, 128, dtype=BF16) for length in (1, 64))  # heads alone fill the card
    decode(many, many, cache, cache, None, 0.125, 100)
    tokens = torch.zeros(1, 2, 256, dtype=torch.int64)
    for heads in (1, 2, 8):
        given = {"inverse_frequency": torch.rand(1, 64 // heads), "heads": heads, "rotate_rho": True}
        for gains in ((), ((1, 3, 128 // heads),)):
            differentiate(
                lambda x, w, g=None, given=given: projected(x, w, gains=g, eps=1e-5, **given)[0],
                *((1, 2, 256, 128), (1, 512, 128), *gains),
            )
        differentiate(lambda table, given=given: looked_up(tokens, table, **given)[0], (1, 16, 512))


def run_fused() -> None:
    frequency = torch.rand(32)
    parts = [Part(2, 64, Form.ROTARY), Part(2, 64, Form.UNIT_NORM), Part(2, 64)]
    differentiate(lambda x: split_heads(x, parts, frequency, backend="triton"), (2, 64, 384))
    parts = [Part(2, 64, Form.RMS_NORM_ROTARY), Part(2, 64, Form.RMS_NORM), Part(2, 64)]
    differentiate(
        lambda x, *gains: split_heads(x, parts, frequency, gains, 1e-5, backend="triton"), (2, 64, 416), (64,), (64,)
    )
    differentiate(
        lambda x, g: norm_heads(x, (2, 2), 64, (g, None), 1e-5, backend="triton"), (16, 416), (64,), dtype=torch.float32
    )
    for channels, rate in ((2, ()), (2, ((2,),)), (128, ((128,),))):
        differentiate(
            lambda x, bias, log_rate=None: gates(
                *x.split((len(bias), 2), -1), bias, log_rate=log_rate, backend="triton"
            ),
            *((2, 64, channels + 2), (channels,), *rate),
        )
    normed, copied = Part(2, 64, Form.UNIT_NORM), Part(4, 64, Form.COPY)
    for parts in ([normed, normed, copied], [normed, normed], [copied]):
        shapes = (2, 64, 544), (columns_of(parts), 4)
        differentiate(lambda x, w, parts=parts: convolve_heads(x, w, parts, backend="triton"), *shapes)
    differentiate(lambda x: rotary_heads(x, 2, frequency, [True], backend="triton"), (2, 64, 128))
    differentiate(swiglu_mlp, (2, 64, 128), (704, 128), (128, 352), backend="triton")
    differentiate(swiglu_packed, (2, 64, 704), backend="triton")
    for silu in (True, False):
        shapes = (2, 64, 2, 128), (2, 64, 256), (128,)
        differentiate(gated_rms_norm, *shapes, eps=1e-5, silu=silu, backend="triton")
    differentiate(linear, (2, 4096, 128), (128, 128), backend="triton")
    differentiate(lambda x, w: rms_norm(x, w, 1e-5, backend="triton"), (2, 64, 128), (128,))
    differentiate(lambda x, u, w: add_rms_norm(x, u, w, 1e-5, backend="triton"), *[(2, 64, 128)] * 2, (128,))
    with torch.autocast("cpu", BF16):
        stream = (2, 64, 128)
        for outputs in (16, 128):
            head = (128,), (outputs, 128), (outputs,)
            differentiate(
                lambda x, y, *a: norm_linear(x, y.to(BF16), *a, 1e-5, backend="triton"),
                stream,
                stream,
                *head,
                dtype=torch.float32,
            )
    tokens = torch.randint(0, 16, (2, 4, 16))
    differentiate(lambda logits: cross_entropy(logits, tokens, backend="triton")[0], (2, 4, 16, 16))
    differentiate(lambda table: embedding(tokens[0], table, backend="triton"), (16, 128), dtype=torch.float32)
    for vocabulary in (16, 32, 128):
        shapes = (vocabulary, 128), *[(4, 16, 128)] * 2, *[(128,)] * 2
        differentiate(partial(run_first_block, tokens[0]), *shapes, dtype=torch.float32)


def run_first_block(tokens, table, y, z, gain, next_gain):
    total, first = embedded_add_rms_norm(Embedded(tokens, table), y.to(BF16), gain, 1e-5, backend="triton")
    return first, *embedded_add_rms_norm(total, z.to(BF16), next_gain, 1e-5, backend="triton")


def run_mixers() -> None:
    for name in ("gdn", "mesa", "affine_mesa", "mamba", "kda"):
        with torch.autocast("cpu", BF16):
            differentiate(mixer_of(name, 128, backend="triton"), (2, 128, 128))
    probe = partial(solved_probe, scale=0.125, ridge=1.0, relative=True, backend="triton")
    differentiate(probe, *[(2, 128, 2, 64)] * 2)
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


def run_newton_schulz() -> None:
    orthogonalise(torch.randn(3, 128 * 352), ((128, 352),), 5, backend="triton")


GROUPS = {
    "attention": run_attention,
    "fused": run_fused,
    "mixers": run_mixers,
    "optimizer": run_optimizer,
    "newton_schulz": run_newton_schulz,
}


def main(*groups: str) -> None:
    """Compiles the kernels of these groups, or of all."""
    modules = set()

    def compiled(src, metadata, **_):
        modules.add(src.fn.__module__)
        most = PROJECTION_MEMORY if src.fn is projection_kernel else SHARED_MEMORY
        assert metadata["shared"] <= most, (src.name, metadata["shared"])

    triton.knobs.compilation.listener = compiled
    dispatch.runs_triton = lambda device: True  # the CPU that is here would be refused
    driver.set_active(Hopper())
    with compiling_ahead():
        for group in groups or GROUPS:
            GROUPS[group]()
    print("\n".join(sorted(modules)))


if __name__ == "__main__":
    main(*sys.argv[1:])
