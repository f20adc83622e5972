"""Benchmarks refuse to start where there is no GPU to measure, and measure what a run does."""

import importlib
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
COMMANDS = {
    "parallax_decode": ["--output", "made"],
    "parallax_kernel": ["--output", "made"],
    "throughput": ["--out", "made.csv"],
}


def call(monkeypatch, name, *arguments):
    monkeypatch.setattr("sys.argv", [name, *arguments])
    importlib.import_module(f"mixerlab.benchmarks.{name}").main()


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
