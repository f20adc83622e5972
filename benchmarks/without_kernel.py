"""What each fused kernel is worth in training: the time of a step without it, over the time of a step with all.

    python -m mixerlab.benchmarks.without_kernel [--mixers ...] [--seconds 300] --output FOLDER

Each variant leaves out one operator as if it were removed, and what takes over may be other kernels of ours:

- `mlp`: `linear`, `swiglu`, `linear`; `convolve_heads`: `heads`, `short_convolution`;
- `block`, Mamba's: `short_convolution`, `linear`, scan; `parallax short`: the kernels for long sequences;
- the others: PyTorch's operations.

Where a variant has several names, the others cannot stay without one of them; `swiglu` runs only without `mlp`.

A step is that of `throughput` with three replicas, captured in a CUDA graph. From the same weights, rounds of steps
with all kernels and rounds without one alternate. `ratio` is the median over rounds; 1.00: the kernel is worth nothing.
`nothing` leaves nothing out and shows the noise. `calls` counts what the operator launches and calls in one step. A
variant in which it is still called is not reported, nor is one that its mixer does not use. Losses differ by rounding.

The shapes are a MAD cell (16 tokens, length 128) and one of `experiment=challenge` (256 tokens, length 1,024). After
`--seconds` nothing new is begun; the most telling mixers come first.
"""

import gc
import itertools
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from typing import Any
from unittest import mock

import pandas as pd
import torch

from mixerlab.benchmarks.measuring import Table, milliseconds, options_on_gpu, parser_of
from mixerlab.benchmarks.throughput import Trial, config
from mixerlab.config.building import TaskShape

REPLICAS, ROUNDS, STEPS = 3, 8, 10
MIXERS = ("parallax", "mamba", "gdn", "affine_mesa", "attn", "mesa")
SHAPES = {"MAD": TaskShape(16, 128), "challenge": TaskShape(256, 1024)}
# The operators that a variant leaves out, in `kernels`.
VARIANTS: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "parallax short": ("parallax.triton_short",),
    "block": ("selective_scan.block",),
    "centring": ("centring",),
    "softmax_attention": ("softmax_attention",),
    "convolve_heads": ("short_convolution.heads",),
    "short_convolution, convolve_heads, block": ("short_convolution", "selective_scan.block"),
    "heads, convolve_heads": ("fused.heads", "short_convolution.heads"),
    "gates": ("fused.gates",),
    "mlp": ("fused.mlp",),
    "mlp, swiglu": ("fused.mlp", "fused.swiglu"),
    "rms_norm": ("fused.rms_norm",),
    "embedding": ("fused.embedding",),
    "linear": ("fused.linear",),
    "cross_entropy": ("fused.cross_entropy",),
    "newton_schulz": ("optimizer.newton_schulz",),
    "population_step": ("optimizer.population_step",),
    "join_columns": ("optimizer.join_columns",),
    "sum_parts": ("common.triton_sums",),
}


def gives(value: Any) -> Any:
    return lambda *_, **__: value


# Module, name in it and what stands there instead: to leave an operator out. By default its `resolve_backend`.
SWITCHES: dict[str, list[tuple[str, str, Any]]] = {
    "parallax.triton_short": [("kernels.parallax.operator", "SHORT_LENGTH", 0)],
    "selective_scan.block": [("kernels.selective_scan.block", "selective_scan_backend", gives("reference"))],
    "centring": [("kernels.centring", "choose_backend", gives("reference"))],
    "softmax_attention": [("kernels.softmax_attention", "is_short", gives(False))],
    "short_convolution": [
        ("kernels.short_convolution", "resolve_backend", gives("reference")),
        ("kernels.short_convolution.heads", "resolve_backend", gives("reference")),
    ],
    # Other operators call their backward, which then is PyTorch's.
    "fused.embedding": [
        ("kernels.fused.embedding", "resolve_backend", gives("reference")),
        ("kernels.fused.embedding.operator", "MAX_VOCABULARY", 0),
    ],
    "fused.linear": [
        ("kernels.fused.linear", "resolve_backend", gives("reference")),
        ("kernels.fused.linear.operator", "part_steps", gives(None)),
    ],
}
# The modules whose calls are those of an operator, where it is not its own and those below.
COUNTED = {
    "fused.embedding": "fused.embedding.triton_kernels",
    "fused.linear": "fused.linear.triton_kernels",
}


@contextmanager
def left_out(operators: Sequence[str]) -> Iterator[None]:
    """Within it models are built without these operators; modules that use them have been imported."""
    with ExitStack() as stack:
        for operator in operators:
            for module, name, plain in switches(operator):
                stack.enter_context(mock.patch.object(import_module(f"mixerlab.{module}"), name, plain))
        yield


def switches(operator: str) -> list[tuple[str, str, Any]]:
    if operator == "common.triton_sums":  # each has imported it by name
        ours = [name for name in sys.modules if name.startswith("mixerlab.kernels.")]
        users = [name.removeprefix("mixerlab.") for name in ours if hasattr(sys.modules[name], "sum_parts")]
        return [(user, "sum_parts", lambda parts, dtype: parts.sum(dim=1).to(dtype)) for user in users]
    return SWITCHES.get(operator, [(f"kernels.{operator}", "resolve_backend", gives("reference"))])


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """How many of our kernels are launched and operators called within it, by the modules that define them."""
    import triton  # here, because Triton is optional

    calls: Counter[str] = Counter()
    launch, call = triton.JITFunction.run, torch.library.CustomOpDef.__call__

    def launched(kernel: Any, *arguments: Any, **options: Any) -> Any:
        calls[kernel.fn.__module__] += 1
        return launch(kernel, *arguments, **options)

    def called(operator: Any, *arguments: Any, **options: Any) -> Any:
        calls[operator._init_fn.__module__] += 1
        return call(operator, *arguments, **options)

    with (
        mock.patch.object(triton.JITFunction, "run", launched),
        mock.patch.object(torch.library.CustomOpDef, "__call__", called),
    ):
        yield calls


def calls_of(operators: Sequence[str], calls: Counter[str]) -> int:
    prefixes = tuple(f"mixerlab.kernels.{COUNTED.get(operator, operator)}." for operator in operators)
    return sum(count for module, count in calls.items() if f"{module}.".startswith(prefixes))


class Built:
    """A model with a captured step, its losses in the first steps, and what one of its steps calls."""

    def __init__(self, mixer: str, shape: str):
        self.trial = Trial(config(mixer), SHAPES[shape], REPLICAS)
        self.captured = self.trial.captured()
        self.losses = torch.stack([self.captured(rows).clone() for rows in self.trial.rows])
        self.state = [tensor.detach().clone() for tensor in self.trial.state]
        with counting() as self.calls:
            self.trial.step(self.trial.rows[0])

    def restart(self) -> None:
        """Back to the state behind these losses: some kernels take longer for some weights."""
        for tensor, before in zip(self.trial.state, self.state, strict=True):
            tensor.detach().copy_(before)

    def step_ms(self) -> float:
        return milliseconds(partial(self.captured, self.trial.rows[0]), STEPS)


def compared(base: Built, other: Built) -> dict[str, Any]:
    """Times and losses of a row."""
    for built in (base, other):
        built.restart()
        built.step_ms()
    times = [(base.step_ms(), other.step_ms()) for _ in range(ROUNDS)]
    ratios = [without / usual for usual, without in times]
    return {
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "step ms": statistics.median(usual for usual, _ in times),
        "step ms without": statistics.median(without for _, without in times),
        "last loss": base.losses[-1].mean().item(),
        "last loss without": other.losses[-1].mean().item(),
        "largest loss difference": ((other.losses - base.losses).abs() / base.losses.abs()).max().item(),
        "note": "; ".join(dict.fromkeys(other.trial.notes)),
    }


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--mixers", nargs="+", default=MIXERS)
    parser.add_argument("--variants", nargs="+", default=VARIANTS, choices=VARIANTS)
    parser.add_argument("--seconds", type=float, default=300, help="after which nothing new is begun")
    args = options_on_gpu(parser)
    end = time.monotonic() + args.seconds
    table = Table(args.output, "without_kernel")
    for mixer, shape in itertools.product(args.mixers, SHAPES):
        if time.monotonic() > end:
            break
        base = Built(mixer, shape)
        for name in args.variants:
            operators = VARIANTS[name]
            calls = calls_of(operators, base.calls)
            if time.monotonic() > end or (operators and not calls):
                continue
            label = {"shape": shape, "mixer": mixer, "without": name, "calls": calls}
            try:
                with left_out(operators):
                    other = Built(mixer, shape)
                if left := calls_of(operators, other.calls):
                    raise RuntimeError(f"is called {left} times all the same")
            except Exception as error:  # of any type: the other variants are worth measuring
                print(*label.values(), f"is no number: {type(error).__name__}: {error}", flush=True)
                continue
            table.add(label | compared(base, other))
            del other
            gc.collect()
            torch.cuda.empty_cache()
    rows = pd.read_csv(table.path)
    rows = rows[rows["run"] == table.run]
    print(rows.pivot(index=["shape", "without"], columns="mixer", values="ratio").to_string(na_rep=""))


if __name__ == "__main__":
    main()
