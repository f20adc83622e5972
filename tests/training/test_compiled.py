"""Mixers in plain PyTorch run compiled, and give what they give uncompiled; the record says which ran."""

import pytest
import torch
import torch._dynamo.config
import torch.nn.functional as F
from every_mixer import MIXERS, mixer_of, prefer_kernels
from stateful_mixers import model_with
from tiny_training import VOCAB, WIDTH, fit
from torch import nn

from mixerlab.mixers.base import SequenceMixer
from mixerlab.models.language_model import LanguageModel
from mixerlab.training import compiled
from mixerlab.training.compiled import compile_mixers, without_kernels
from mixerlab.training.population import Population

TWO = [(1e-2, 0), (1e-3, 1)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name != "linear" else []) for name in MIXERS]
)
def test_what_a_gpu_runs_of_a_mixer_compiles_under_vmap(monkeypatch, name):
    """Kernels behind an `autograd.Function` give way to PyTorch; the others are traced."""
    prefer_kernels(monkeypatch)
    mixer, x = mixer_of(name, 32), torch.randn(2, 1, 16, 32)
    torch.compiler.reset()
    together = torch.compile(torch.vmap(lambda own: mixer(own)), fullgraph=True, backend="eager")(x)
    torch.testing.assert_close(together, torch.stack([mixer(own) for own in x]), atol=1e-5, rtol=1e-4)


class Plain(SequenceMixer):
    def __init__(self, scale=1.0):
        super().__init__()
        self.proj, self.scale = nn.Linear(WIDTH, WIDTH), scale
        self.register_buffer("offset", torch.ones(WIDTH))

    def forward(self, x):
        return self.scale * self.proj(x).cumsum(dim=1) + self.offset


class Breaking(Plain):
    def forward(self, x):
        if self.scale == 1.0:
            torch._dynamo.graph_break()
        return super().forward(x)


class Uncopyable(Plain):
    def __init__(self):
        super().__init__()
        self.lines = (line for line in "ab")


class Counting(Plain):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.calls += 1
        return super().forward(x)


class Backend:
    """Compiles nothing; counts the graphs that it was given, and how often these ran."""

    def __init__(self):
        self.graphs = self.ran = 0

    def __call__(self, graph, inputs):
        self.graphs += 1

        def run(*arguments):
            self.ran += 1
            return graph.forward(*arguments)

        return run


@pytest.fixture
def backend(monkeypatch):
    monkeypatch.setattr(compiled, "_functions", {})
    monkeypatch.setattr(compiled, "_failures", {})
    backend = Backend()
    monkeypatch.setattr(compiled, "BACKEND", backend)
    return backend


def step(population, vocab=VOCAB):
    tokens = torch.randint(vocab, (len(population), 3, 7), generator=torch.Generator().manual_seed(0))
    population.model.train()
    loss = population(tokens).square().mean()
    (gradient,) = torch.autograd.grad(loss, population.parameters_by_replica)
    population.model.eval()
    with torch.no_grad():
        return loss.detach(), gradient, population(tokens).square().mean()


def compiled_population(build, seeds=(0, 1)):
    population, lines = Population(build, seeds), []
    compile_mixers(population, True, dtype=torch.float32, report=lines.append)
    return population, lines


def test_eight_vocabularies_are_one_compilation_and_each_runs_it(backend):
    for vocab in range(8, 16):
        population, reported = compiled_population(model_with(Plain, vocab))
        ran = backend.ran
        usual = step(Population(model_with(Plain, vocab), (0, 1)), vocab)
        torch.testing.assert_close(step(population, vocab), usual, rtol=1e-6, atol=1e-7)
        assert backend.ran - ran == 2 * 2 * 2  # layers, training and scoring, tried and called
        assert all(" is compiled: " in line for line in reported) and reported
        assert backend.graphs == 2  # training and scoring: layers and cells share them


@pytest.mark.parametrize(
    ("mixer", "note"),
    [
        (Plain, "Plain is compiled: torch.compile, "),
        (Breaking, "Breaking is not compiled: torch.compile fails with Unsupported: "),
        (Counting, "Counting is not compiled: replicas have buffers of their own"),
        (Uncopyable, "Uncopyable is not compiled: it cannot be copied: TypeError: cannot pickle 'generator'"),
    ],
)
def test_a_run_notes_what_is_compiled_and_gives_the_same_results(tmp_path, backend, mixer, note):
    plain, other = (fit(TWO, tmp_path, build=model_with(mixer), epochs=1, compile=wanted) for wanted in (False, True))
    assert other.notes[-1].startswith(note) and "compiled: " not in str(plain.notes)
    losses = [torch.tensor(result.metrics["train_loss"].tolist()) for result in (plain, other)]
    torch.testing.assert_close(*losses, rtol=1e-6 if mixer is Plain else 0, atol=0)
    assert (backend.ran > 0) == (mixer is Plain)


def test_auto_compiles_what_has_no_kernels_on_a_gpu_only(monkeypatch):
    def is_compiled(mixer, device):
        population = Population(model_with(mixer), (0,))
        monkeypatch.setattr(Population, "device", torch.device(device))
        compile_mixers(population, "auto", dtype=torch.bfloat16, report=print)
        return "forward" in vars(population.model.blocks[0].mixer)

    assert is_compiled(Plain, "cuda") and not is_compiled(Plain, "cpu")
    assert not is_compiled(lambda: mixer_of("gdn", WIDTH), "cuda")


def test_it_is_said_which_mixer_has_no_kernel_for_its_sizes(monkeypatch):
    def lines(**options):
        build = model_with(lambda: mixer_of("mamba", WIDTH, **options))
        return without_kernels(Population(build, (0,)), torch.bfloat16)

    assert lines(d_state=2) == []  # on a CPU
    monkeypatch.setattr(Population, "device", torch.device("cuda"))
    assert lines(d_state=4) == [] and lines(d_state=2, backend="reference") == []
    (line,) = lines(d_state=2)
    assert line.startswith("Mamba runs as its PyTorch reference, which is slow")


class PlainAttention(SequenceMixer):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192, bias=False), nn.Linear(64, 64, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 32)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


@pytest.mark.gpu
def test_a_compiled_mixer_in_a_captured_step(tmp_path):
    """By default, and for fewer replicas when one has left."""

    # Few epochs: later the rounding of two kernels for attention has grown.
    settings = {
        "accelerator": "gpu",
        "precision": "bf16",
        "epochs": 4,
        "build": lambda: LanguageModel(VOCAB, 64, 2, PlainAttention),
    }
    plain, other = (fit([*TWO, (1e30, 2)], tmp_path, compile=wanted, **settings) for wanted in (False, "auto"))
    assert plain.notes == [] and other.notes == ["PlainAttention is compiled: torch.compile, inductor"]
    losses = [torch.tensor(result.metrics["train_loss"].tolist()) for result in (plain, other)]
    torch.testing.assert_close(*losses, rtol=2e-2, atol=2e-3, equal_nan=True)
