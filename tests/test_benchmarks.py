"""Benchmarks refuse to start where there is no GPU to measure, and measure what a run does."""

import importlib
from pathlib import Path

import pytest
import torch

from mixerlab.benchmarks import throughput
from mixerlab.benchmarks.ema import MovingAverage

ROOT = Path(__file__).parents[1]
COMMANDS = {
    "first_step": [],
    "parallax_decode": ["--output", "made"],
    "parallax_kernel": [],
    "peers": ["few", "0", "1", "64"],
    "throughput": [],
}


def call(monkeypatch, name, *arguments):
    monkeypatch.setattr("sys.argv", [name, *arguments])
    importlib.import_module(f"mixerlab.benchmarks.{name}").main()


@pytest.mark.parametrize("name", COMMANDS)
def test_help(monkeypatch, capsys, name):
    with pytest.raises(SystemExit) as stopped:
        call(monkeypatch, name, "--help")
    assert stopped.value.code == 0 and capsys.readouterr().out.startswith("usage: ")


@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_gpu_nothing_is_started(monkeypatch, tmp_path, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="needs an NVIDIA GPU"):
        call(monkeypatch, name, *COMMANDS[name])
    assert list(tmp_path.iterdir()) == []


def test_the_ema_that_is_measured_is_the_readmes():
    _, code = (ROOT / "benchmarks" / "ema.py").read_text().split("\n\n", 1)
    assert f"# mixers/ema.py\n{code}```" in (ROOT / "README.md").read_text()


class Counting(MovingAverage):
    """Has a buffer that training changes, so that each replica gets its own."""

    def __init__(self, d_model):
        super().__init__(d_model)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        return super().forward(x)


def test_a_graph_holds_the_buffers_that_a_step_changes(monkeypatch):
    """A captured step writes to them, so they are restored after its capture."""
    monkeypatch.setattr(throughput, "DEVICE", torch.device("cpu"))
    monkeypatch.setattr(throughput, "BATCH", 2)
    monkeypatch.setitem(throughput.PLAIN, "counting", f"{__name__}.Counting")
    trial = throughput.Trial("counting", 4, 2, wanted=False)
    owned = list(trial.steps.population.buffers_by_replica.values())
    assert len(owned) == 2 and all(any(tensor is one for one in trial.state) for tensor in owned)
