"""What each fused operator saves on one GPU, against PyTorch and against Inductor.

    python -m mixerlab.benchmarks.fused [--mixers ...] [--lengths 128 1024] [--without A B ... | --whole] [--out FILE]

For each mixer and length, in one run: milliseconds of the captured training step and of the scoring step, three
replicas, batch 128, width 128, two layers, vocabulary 16, Muon, bf16

- as it is;
- without each operator that the model calls: if it is a formula, PyTorch computes it; if it joins others, those take
  its place;
- with `torch.compile` (Inductor) of the whole model in place of all operators of `kernels/fused` and `convolve_heads`;
- with `torch.compile` and the operators.

`--without A B` measures the model as it is and without all of these operators at once, and nothing else; `--whole` all
but the single operators. Options go behind a mixer's name: `--mixers "attn mixer.qk_norm=false"`.

Beside each time stands the largest difference of the losses of 20 steps from those of the model as it is. The first
step, at the first length, is timed in a process of its own, with empty caches of Triton and Inductor
(`--no-first-step` leaves it out, `--jobs N` runs N of these processes at a time). Its time includes building the
population and trying how it computes, where most kernels are compiled.
"""

import argparse
import contextlib
import gc
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pandas as pd
import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.attention import sdpa_kernel

from mixerlab.benchmarks import throughput
from mixerlab.benchmarks.throughput import Trial, milliseconds
from mixerlab.kernels import fused
from mixerlab.kernels.short_convolution.heads import convolve_heads
from mixerlab.records.provenance import versions
from mixerlab.training.compiled import ATTENTION
from mixerlab.training.population import ALL, Population

REPLICAS = 3
MIXERS = tuple(mixer for mixer in throughput.MIXERS if mixer not in throughput.PLAIN)  # those with operators of ours
COMPILED, BOTH = "Inductor in place of all", "Inductor and all"
AS_IT_IS, LEFT_OUT = "as it is", "without "


def _mlp(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    return fused.linear(fused.swiglu_packed(fused.linear(x, gate_up)), down)


def _norm_linear(x: Tensor, y: Tensor | None, gain: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    _, normed = fused.add_rms_norm(x, y, gain, eps)
    return fused.linear(normed, weight) + bias


def _embedding_rms_norm(tokens: Tensor, table: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return fused.add_rms_norm(fused.embedding(tokens, table), None, gain, eps)


def _embedded_add_rms_norm(x: fused.Embedded, y: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return fused.add_rms_norm(x.look_up(), y, gain, eps)


def _cat(*weights: Tensor) -> Tensor:
    return torch.cat(weights)


FORMULAS = (
    "add_rms_norm",
    "cross_entropy",
    "embedding",
    "linear",
    "rms_norm",
    "rotary_heads",
    "split_heads",
    "swiglu",
    "swiglu_packed",
)
# What stands in for an operator when it is left out.
WITHOUT: dict[str, Callable[..., Any]] = {
    "swiglu_mlp": _mlp,
    "norm_linear": _norm_linear,
    "embedding_rms_norm": _embedding_rms_norm,
    "embedded_add_rms_norm": _embedded_add_rms_norm,
    "join_rows": _cat,
}
WITHOUT |= {name: partial(getattr(fused, name), backend="reference") for name in FORMULAS}


# Not of `kernels/fused`, but the compiler looks past its autograd.Function, under vmap, and finds no gradient.
FOR_INDUCTOR: dict[Callable[..., Any], Callable[..., Any]] = {
    convolve_heads: partial(convolve_heads, backend="reference")
}


def left_out(
    *names: str, others: Mapping[Callable[..., Any], Callable[..., Any]] | None = None
) -> contextlib.AbstractContextManager[None]:
    """Without the operators of these names; `others` are replaced as well."""
    return replaced({getattr(fused, name): WITHOUT[name] for name in names} | dict(others or {}))


@contextlib.contextmanager
def replaced(stand_ins: Mapping[Callable[..., Any], Callable[..., Any]]) -> Iterator[None]:
    """Every module of ours that has one of these operators has its stand-in meanwhile."""
    with contextlib.ExitStack() as changes:
        for operator, stand_in in stand_ins.items():
            for module in [module for key, module in sys.modules.items() if key.startswith("mixerlab.")]:
                for key in [key for key, value in vars(module).items() if value is operator]:
                    changes.enter_context(mock.patch.object(module, key, stand_in))
        yield


def operators_of(mixer: str, length: int) -> list[str]:
    """Which operators of `WITHOUT` a training step and a scoring step of the model call."""
    watched = {name: mock.Mock(wraps=getattr(fused, name)) for name in WITHOUT}
    spies = {getattr(fused, name): spy for name, spy in watched.items()}
    imported = contextlib.nullcontext()  # modules that are imported late must find the operators themselves
    for context in (imported, replaced(spies)):
        with context:
            trial = Trial(mixer, length, REPLICAS, wanted=False)
            trial.steps.train(trial.rows[0])
            trial.steps.score(trial.rows[0])
    return [name for name, operator in watched.items() if operator.called]


def _variant(name: str) -> contextlib.AbstractContextManager[None]:
    if name.startswith(LEFT_OUT):
        return left_out(*name.removeprefix(LEFT_OUT).split(", "))
    return left_out(*WITHOUT, others=FOR_INDUCTOR) if name == COMPILED else contextlib.nullcontext()


def _trial(mixer: str, length: int, variant: str) -> Trial:
    trial = Trial(mixer, length, REPLICAS, wanted=False)  # only the variants of Inductor compile
    if variant in (COMPILED, BOTH):
        _compile(trial.steps.population)
    return trial


def _compile(population: Population) -> None:
    """From now on the model of all replicas is one compiled function. Taking the parameters apart stays outside."""

    @partial(torch.compile, dynamic=False, fullgraph=True)
    def model(parameters: Mapping[str, Tensor], tokens: Tensor, scored: slice) -> Tensor:
        def one_replica(parameters: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
            return functional_call(population.model, dict(parameters), (tokens, scored))

        return vmap(one_replica)(parameters, tokens)

    def forward(tokens: Tensor, scored: slice = ALL) -> Tensor:
        with sdpa_kernel(ATTENTION):
            return model(population.parameters_by_name(), tokens, scored)

    population.forward = forward  # type: ignore[method-assign]  # of this one population


def measure(mixer: str, length: int, variant: str, repeats: int) -> tuple[dict[str, float], Tensor]:
    """Milliseconds of both steps, and the losses `[steps, R]` of captured steps from the start."""
    torch._dynamo.reset()
    with _variant(variant):
        trial = _trial(mixer, length, variant)
        train, score = trial.captured(trial.steps.train), trial.captured(trial.steps.score)
        losses = torch.stack([train(rows).clone() for rows in trial.rows])
        times = {
            f"{kind} ms": milliseconds(partial(step, trial.rows[0]), repeats)
            for kind, step in (("step", train), ("score", score))
        }
    return times, losses


def first_step(mixer: str, length: int, variant: str) -> float:
    """Seconds until the first step is done: it includes building the population and trying how it computes.

    The trial of `choose_execution` is what compiles most kernels.
    """
    torch.cuda.synchronize()  # the CUDA context is there before
    started = time.perf_counter()
    with _variant(variant):
        trial = _trial(mixer, length, variant)
        trial.steps.train(trial.rows[0])
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _first_step_from_empty_caches(mixer: str, length: int, variant: str) -> float:
    with tempfile.TemporaryDirectory() as caches:
        elsewhere = {"TRITON_CACHE_DIR": f"{caches}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor"}
        command = [sys.executable, "-m", "mixerlab.benchmarks.fused", "--first-step", mixer, str(length), variant]
        done = subprocess.run(command, env=os.environ | elsewhere, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m mixerlab.benchmarks.fused", description=__doc__.splitlines()[0])
    parser.add_argument("--mixers", nargs="+", default=MIXERS)
    parser.add_argument("--lengths", nargs="+", type=int, default=[128, 1024])
    parser.add_argument("--repeats", type=int, default=100)
    variants = parser.add_mutually_exclusive_group()
    variants.add_argument("--without", nargs="+", choices=WITHOUT, help="leave out all of these at once")
    variants.add_argument("--whole", action="store_true", help="do not leave out single operators")
    parser.add_argument("--no-first-step", action="store_true", help="do not time the first step from empty caches")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time that make the first step")
    parser.add_argument("--first-step", nargs=3, metavar=("MIXER", "LENGTH", "VARIANT"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="CSV file for the table; versions go to a JSON file beside it")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    if given.first_step:
        mixer, length, variant = given.first_step
        print(first_step(mixer, int(length), variant))
        return
    if given.out:
        command = shlex.join(["python", "-m", "mixerlab.benchmarks.fused", *sys.argv[1:]])
        machine = {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda, **versions()}
        given.out.with_suffix(".json").write_text(json.dumps({"command": command, **machine}, indent=1))
    rows: list[dict[str, Any]] = []
    for length in given.lengths:
        for mixer in given.mixers:
            if given.without:
                wanted = [AS_IT_IS, LEFT_OUT + ", ".join(given.without)]
            else:
                single = [] if given.whole else [LEFT_OUT + name for name in operators_of(mixer, length)]
                wanted = [AS_IT_IS, *single, COMPILED, BOTH]
            rows += _measured(mixer, length, wanted, given.repeats)
            if given.out:  # now and then, so that an interrupted run keeps its rows
                pd.DataFrame(rows).to_csv(given.out, index=False)
    if not given.no_first_step and not given.without:
        whole = [
            row
            for row in rows
            if row["T"] == given.lengths[0] and row["variant"] in (AS_IT_IS, COMPILED, BOTH) and "note" not in row
        ]
        with ThreadPoolExecutor(given.jobs) as jobs:
            for row, seconds in zip(whole, jobs.map(_first_step_of, whole), strict=True):
                row["first step s"] = seconds
        if given.out:
            pd.DataFrame(rows).to_csv(given.out, index=False)
    print(pd.DataFrame(rows).round(3).to_string(index=False))


def _measured(mixer: str, length: int, variants: list[str], repeats: int) -> Iterator[dict[str, Any]]:
    """A row for each of `variants`, of which the first is the model as it is."""
    exact, base = None, float("nan")
    for variant in variants:
        row: dict[str, Any] = {"mixer": mixer, "T": length, "variant": variant}
        try:
            times, losses = measure(mixer, length, variant, repeats)
            if exact is None:
                exact, base = losses, times["step ms"]
            row |= times | {"step / as it is": times["step ms"] / base}
            row["loss differs by"] = ((losses - exact).abs() / exact.abs()).max().item()
        except Exception as error:  # Inductor may refuse a mixer: the row says so, and the others are measured
            row["note"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        print(json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
        gc.collect()
        torch.cuda.empty_cache()
        yield row


def _first_step_of(row: dict[str, Any]) -> float:
    return _first_step_from_empty_caches(row["mixer"], row["T"], row["variant"])


if __name__ == "__main__":
    main()
