"""Training throughput of the MAD model on one GPU.

    python -m mixerlab.benchmarks.throughput [--mixers ...] --output FOLDER

For each mixer and length, with 1, 3 and 9 replicas: steps per second with operations launched one by one (eager) and
with the step captured in a CUDA graph, replica-steps per second, GPU memory, and the time of the first step. The losses
of captured and eager steps from the same seed are compared. The peer is the attention model without norms of heads in a
plain Lightning loop with torch.optim.Muon and fused AdamW. Batch 128, width 128, two layers, vocabulary 16, Muon, bf16.

`ema`, the README's mixer, is measured as `trainer.compile=auto` runs it, and uncompiled. Options go behind a mixer's
name: `--mixers "attn mixer.qk_norm=false"`. `floor ms` is the time that a copy of as many bytes takes as a step moves
at least (`bytes_of_token`).
"""

import gc
import itertools
import math
import time
from functools import partial
from typing import Any

import lightning as L
import torch
from omegaconf import DictConfig
from torch import nn

from mixerlab.benchmarks.measuring import Table, copy_rate, milliseconds, options_on_gpu, parser_of
from mixerlab.benchmarks.peers import for_muon
from mixerlab.config.building import Parts, TaskShape, optimizer_maker
from mixerlab.config.compose import compose
from mixerlab.mixers.projected import ProjectedMixer
from mixerlab.models.language_model import LanguageModel
from mixerlab.models.stream import ALL
from mixerlab.records import names
from mixerlab.training.capture import Captured
from mixerlab.training.compiled import compile_mixers
from mixerlab.training.datamodule import Examples
from mixerlab.training.execution import choose_execution
from mixerlab.training.population import Population, is_ours
from mixerlab.training.steps import PopulationSteps

BATCH, WIDTH, VOCAB = 128, 128, 16
MIXERS = (*names.MIXERS, "ema")
LENGTHS = (32, 128, 256, 512, 1024, 2048)
REPLICAS = (1, 3, 9)
COMPARED_STEPS = 20


def config(mixer: str) -> DictConfig:
    """Of a mixer's name, and overrides behind it: `attn mixer.qk_norm=true`."""
    if mixer != "ema":
        return compose(*f"mixer={mixer}".split())
    cfg = compose("mixer=attn")
    cfg.mixer = {"name": mixer, "_target_": "mixerlab.benchmarks.ema.MovingAverage"}  # has no yaml
    return cfg


def bytes_of_token(model: nn.Module) -> float:
    """Bytes of activations that a step moves at least for each token; NaN for a mixer without named projections.

    That is, if each of these operators reads what it needs and writes what it gives once: look-up, addition and norm,
    projections, mixing, output projection, MLP, head and loss, and their backwards. The residual stream has four bytes,
    and all else two.
    """
    assert isinstance(model, LanguageModel)
    vocabulary, width = model.head.weight.shape
    total = 30 * width + 10 * vocabulary  # the last addition and norm, the head and the loss
    for block in model.blocks:
        mixer: Any = block.mixer
        if not isinstance(mixer, ProjectedMixer):
            return math.nan
        projected = sum(getattr(mixer, name).out_features for name in mixer.input_projections)
        # The first has a look-up in place of an addition: of 8 bytes each.
        total += 76 * width + 10 * (projected + getattr(mixer, mixer.output_projection).in_features)
    return total


class Trial:
    """A population with its optimizer and random data on the GPU, which computes as a run decides.

    `wanted` is `trainer.compile`; `notes` is what a run's record would say.
    """

    def __init__(
        self, cfg: DictConfig, task: TaskShape, replicas: int, wanted: str | bool = "auto", batch: int = BATCH
    ):
        build = partial(Parts.of(cfg).build_model, task)
        device = torch.device("cuda")
        population = Population(build, [0] * replicas).to(device)
        rates = [5e-3, 1e-3, 5e-4] * 3
        make_optimizer = optimizer_maker(cfg.optimizer, cfg.schedule)
        optimizer = make_optimizer(population=population, lr=rates[:replicas], total_steps=6000)
        generator = torch.Generator(device).manual_seed(0)
        draw = partial(torch.randint, 0, task.vocab_size, device=device, generator=generator)
        shape = 100 * batch + 1, task.input_length
        examples = Examples(draw(shape), draw(shape), ALL)
        self.steps = PopulationSteps(population, optimizer, examples, bf16=True)
        self.step = self.steps.train
        self.rows = torch.randint(0, 100 * batch, (COMPARED_STEPS, replicas, batch), device=device, generator=generator)
        decision = choose_execution(population, "auto", examples.inputs[self.rows[0]], ALL, bf16=True)
        self.state = self.steps.written_tensors()  # after the decision, which may give replicas buffers of their own
        self.notes = [decision.why] if decision.why else []
        compile_mixers(population, wanted, dtype=torch.bfloat16, report=self.notes.append)

    def captured(self) -> Captured:
        population = self.steps.population
        ahead = is_ours(population.model)
        return Captured(self.step, self.state, self.rows[0], generators=population.generators, ahead=ahead)


def measure(mixer: str, length: int, replicas: int, wanted: str | bool, rate: float) -> dict:
    """One row of the table: the first step, the eager step and the captured step; `rate` is that of a copy."""
    torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    plain = Trial(config(mixer), TaskShape(VOCAB, length), replicas, wanted)
    first_loss = plain.step(plain.rows[0])
    torch.cuda.synchronize()
    first_step = time.perf_counter() - started
    losses = torch.stack([first_loss, *(plain.step(rows) for rows in plain.rows[1:])])
    eager = milliseconds(partial(plain.step, plain.rows[0]), 10)
    del plain

    graphed = Trial(config(mixer), TaskShape(VOCAB, length), replicas, wanted)
    started = time.perf_counter()
    captured = graphed.captured()
    torch.cuda.synchronize()
    capture = time.perf_counter() - started
    replayed = torch.stack([captured(rows).clone() for rows in graphed.rows])
    step = milliseconds(partial(captured, graphed.rows[0]), 50)
    floor = 1000 * replicas * BATCH * length * bytes_of_token(graphed.steps.population.model) / rate
    return {
        "mixer": mixer,
        "T": length,
        "replicas": replicas,
        "compile": str(wanted).lower(),
        "eager steps/s": 1000 / eager,
        "captured steps/s": 1000 / step,
        "replica-steps/s": replicas * 1000 / step,
        "step ms": step,
        "floor ms": floor,
        "times floor": step / floor,
        "largest loss difference": ((losses - replayed).abs() / losses.abs()).max().item(),
        "first step s": first_step,
        "capture s": capture,
        "memory GiB": torch.cuda.max_memory_allocated() / 2**30,
        "note": "; ".join(dict.fromkeys(graphed.notes)),
    }


class Peer(L.LightningModule):
    """The attention model, without norms of heads, as a user would write it in plain Lightning: eager, one replica."""

    def __init__(self, length: int):
        super().__init__()
        self.automatic_optimization = False  # Lightning requires this for two optimizers
        self.model = Parts.of(config("attn mixer.qk_norm=false")).build_model(TaskShape(VOCAB, length))

    def configure_optimizers(self):
        hidden, rest = for_muon(self.model)
        return torch.optim.Muon(hidden, lr=1e-3), torch.optim.AdamW(rest, lr=3e-4, fused=True)

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.model(inputs).flatten(0, 1).float(), targets.flatten())
        optimizers = self.optimizers()
        assert isinstance(optimizers, list)
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(loss)
        nn.utils.clip_grad_norm_(self.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        if batch_idx == 20:
            torch.cuda.synchronize()
            self.started = time.perf_counter()

    def on_train_end(self):
        torch.cuda.synchronize()
        self.seconds = time.perf_counter() - self.started


def measure_peer(length: int, steps: int) -> float:
    """Steps per second of the peer."""
    rows = torch.utils.data.TensorDataset(*torch.randint(0, VOCAB, (2, BATCH * steps, length)))
    peer = Peer(length)
    trainer = L.Trainer(accelerator="gpu", devices=1, precision="bf16-mixed", max_epochs=1, barebones=True)
    trainer.fit(peer, torch.utils.data.DataLoader(rows, BATCH))
    return (steps - 21) / peer.seconds


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--mixers", nargs="+", default=MIXERS)
    parser.add_argument("--lengths", nargs="+", type=int, default=LENGTHS)
    parser.add_argument("--replicas", nargs="+", type=int, default=REPLICAS)
    args = options_on_gpu(parser)
    table, rate = Table(args.output, "throughput"), copy_rate()
    for length in args.lengths:
        peer = measure_peer(length, 121)
        for mixer in args.mixers:
            kinds: tuple[str | bool, ...] = ("auto", False) if mixer == "ema" else ("auto",)
            for replicas, wanted in itertools.product(args.replicas, kinds):
                try:
                    row = measure(mixer, length, replicas, wanted, rate)
                    table.add(row | {"peer steps/s": peer, "times peer": row["replica-steps/s"] / peer})
                except torch.OutOfMemoryError:
                    print(f"{mixer}, T={length}, {replicas} replicas: out of GPU memory", flush=True)
                gc.collect()
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
