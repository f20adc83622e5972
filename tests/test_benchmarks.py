"""Benchmarks say how they are called, and refuse to start where there is no GPU to measure."""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mixerlab.api import build_model
from mixerlab.benchmarks import fused as benchmark_fused
from mixerlab.benchmarks import throughput
from mixerlab.benchmarks.ema import MovingAverage
from mixerlab.benchmarks.fused import WITHOUT, left_out
from mixerlab.kernels import fused

ROOT = Path(__file__).parents[1]

# What each that measures a GPU is called with.
ON_A_GPU = {
    "first_step": [],
    "fused": [],
    "lightning_cost": [],
    "parallax_kernel": [],
    "parallax_training": [],
    "peers": ["few", "0", "1", "64"],
    "shared_gpu": ["attn:128"],
    "throughput": [],
}


def call(monkeypatch, name, *arguments):
    monkeypatch.setattr("sys.argv", [name, *arguments])
    importlib.import_module(f"mixerlab.benchmarks.{name}").main()


@pytest.mark.parametrize("name", [*ON_A_GPU, "parallax_table", "report_time", "task_generation"])
def test_help(monkeypatch, capsys, name):
    with pytest.raises(SystemExit) as stopped:
        call(monkeypatch, name, "--help")
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")


@pytest.mark.parametrize("name", ON_A_GPU)
def test_without_a_gpu_nothing_is_started(monkeypatch, tmp_path, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="needs an NVIDIA GPU"):
        call(monkeypatch, name, *ON_A_GPU[name])
    assert list(tmp_path.iterdir()) == []


def test_the_ema_that_is_measured_is_the_readmes():
    _, code = (ROOT / "benchmarks" / "ema.py").read_text().split("\n\n", 1)
    assert f"# mixers/ema.py\n{code}```" in (ROOT / "README.md").read_text()


def test_fused_measures_mixers_with_operators_of_ours():
    assert benchmark_fused.MIXERS == ("attn", "parallax", "gdn", "mamba", "mesa")


def test_the_first_step_is_timed_from_before_the_population_is_tried(monkeypatch):
    """The trial compiles kernels: in a process without caches that is most of the time."""
    now = 0.0

    def passes(seconds):
        nonlocal now
        now += seconds

    def trial(mixer, length, variant):
        passes(5.0)
        return SimpleNamespace(steps=SimpleNamespace(train=lambda rows: passes(1.0)), rows=[None])

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(benchmark_fused.time, "perf_counter", lambda: now)
    monkeypatch.setattr(benchmark_fused, "_trial", trial)
    assert benchmark_fused.first_step("attn", 128, "as it is") == 6.0


@pytest.fixture
def tiny(monkeypatch):
    """Trials of batch 2 on the CPU."""
    monkeypatch.setattr(throughput, "DEVICE", torch.device("cpu"))
    monkeypatch.setattr(throughput, "BATCH", 2)


def test_only_the_variants_of_inductor_compile(monkeypatch, tiny):
    compiled = []

    def compile_eagerly(function, **options):
        compiled.append(options)
        return compile_(function, backend="eager", **options)

    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", compile_eagerly)
    trials = [benchmark_fused._trial("attn", 8, variant) for variant in ("as it is", benchmark_fused.COMPILED)]
    assert compiled == [{"dynamic": False, "fullgraph": True}]
    first, second = (trial.steps.train(trial.rows[0]) for trial in trials)
    assert torch.equal(first, second) and first.shape == (3,)


def test_only_operators_that_a_model_calls_are_left_out(tiny):
    of_attention = set(benchmark_fused.operators_of("attn", 8))
    assert {"embedding_rms_norm", "swiglu_mlp", "norm_linear", "cross_entropy"} <= of_attention
    assert "swiglu" not in of_attention and "swiglu" in benchmark_fused.operators_of("gdn", 8)
    assert "rotary_heads" in benchmark_fused.operators_of("attn mixer.qk_norm=false", 8)


class Counting(MovingAverage):
    """Has a buffer that training changes, so that each replica gets its own."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return super().forward(x)


def test_a_graph_holds_the_buffers_that_a_step_changes(monkeypatch, tiny):
    """A captured step writes to them, so they are restored after its capture."""
    monkeypatch.setitem(throughput.PLAIN, "counting", f"{__name__}.Counting")
    trial = throughput.Trial("counting", 4, 2, wanted=False)
    owned = list(trial.steps.population.buffers_by_replica.values())
    assert len(owned) == 2 and all(any(tensor is one for one in trial.state) for tensor in owned)


def test_every_fused_operator_can_be_left_out():
    types = {"Embedded", "EmbeddedSum", "Form", "Part"}
    assert set(WITHOUT) == set(fused.__all__) - types


@pytest.mark.parametrize("mixer", ["attn", "attn mixer.qk_norm=false", "gdn"])
def test_a_model_without_the_fused_operators_computes_the_same(mixer):
    torch.manual_seed(0)
    model = build_model(*f"mixer={mixer}".split(), "task=icr")
    tokens = torch.randint(16, (2, 16))
    expected = model(tokens)
    operators = {name: getattr(fused, name) for name in WITHOUT}

    def homes():
        return {name: vars(sys.modules[operator.__module__])[name] for name, operator in operators.items()}

    with left_out(*WITHOUT):
        assert homes() == WITHOUT
        actual = model(tokens)
    assert homes() == operators
    assert (actual - expected).abs().max() < 1e-5
