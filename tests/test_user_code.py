"""An error of the user's code names its function, file and line, not those of the libraries around it."""

import pytest
import torch
from omegaconf import OmegaConf

from mixerlab.checks.buildable import check_buildable
from mixerlab.checks.command import main as check
from mixerlab.config.building import component
from mixerlab.config.compose import compose
from mixerlab.config.values import checked, code_versions

FAILING = """
from torch import nn
from mixerlab import SequenceMixer


class InTorch(SequenceMixer):
    def __init__(self, d_model):
        super().__init__()
        self.rnn = nn.GRU(d_model, -1)


class Refusing(SequenceMixer):
    def __init__(self, d_model):
        raise ValueError("not today")


class LateInTorch(SequenceMixer):
    def __init__(self, d_model):
        super().__init__()
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.proj(x[..., 1:])

    def state_size(self, seq_len):
        return 1


class NeedsGPU(SequenceMixer):
    def __init__(self, d_model):
        super().__init__()
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.proj(x)

    def resolved_backend(self, device, dtype):
        raise RuntimeError("Found no NVIDIA driver on your system")

    def state_size(self, seq_len):
        return 1


class NoOptimizer:
    def __init__(self, population, lr, schedule, total_steps):
        pass


class Asserting(SequenceMixer):
    def __init__(self, d_model):
        assert d_model % 3 == 0
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("project") / "failing_mixers.py"
    path.write_text(FAILING)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)
        yield path


@pytest.mark.parametrize(
    ("name", "error", "line"),
    [
        ("InTorch", "ValueError: hidden_size must be greater than zero", 9),
        ("Refusing", "ValueError: not today", 14),
        ("Asserting", "AssertionError", 51),
    ],
)
def test_a_constructor_that_fails_says_where(file, name, error, line):
    with pytest.raises(ValueError) as caught:
        component(OmegaConf.create({"name": "mine", "_target_": f"failing_mixers.{name}"}), d_model=8)
    assert str(caught.value) == f"mine: {error}, in {name}.__init__ ({file}:{line})"


def test_what_our_own_mixers_refuse_says_the_key_only():
    with pytest.raises(ValueError, match=r"^mixer\.num_heads=3 does not divide d_model=8: choose a divisor of 8$"):
        component(OmegaConf.create({"_target_": "mixerlab.mixers.attn.Attention", "num_heads": 3}), d_model=8)


def test_a_mixer_may_need_a_gpu_to_say_its_backend_there(file, monkeypatch):
    cfg = compose("mixer=attn", "task=icr")
    cfg.mixer = {"name": "mine", "_target_": "failing_mixers.NeedsGPU"}
    task, config = checked(cfg)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="mixer=mine: resolved_backend raises RuntimeError: Found no NVIDIA driver"):
        check_buildable(cfg, task, config, code_versions(config))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert check_buildable(cfg, task, config, code_versions(config))[1] == 2


def test_an_optimizer_that_steps_no_population_is_refused(file):
    cfg = compose("mixer=attn", "task=icr")
    cfg.optimizer = {"name": "mine", "lr": 0.1, "_target_": "failing_mixers.NoOptimizer"}
    with pytest.raises(ValueError, match=r"^optimizer=mine: NoOptimizer must be a subclass of .*PopulationOptimizer$"):
        checked(cfg)


def test_a_forward_that_fails_says_where(file, tmp_path, capsys):
    conf = tmp_path / "conf" / "mixer"
    conf.mkdir(parents=True)
    (conf / "mine.yaml").write_text("name: mine\n_target_: failing_mixers.LateInTorch\n")
    assert check(["mine", "--config-dir", str(conf.parent)]) == 1
    error = capsys.readouterr().err
    assert "shapes cannot be multiplied" in error and error.count("\n") == 1
    assert f", in LateInTorch.forward ({file}:23) (checked at d_model=32; model.d_model=" in error
