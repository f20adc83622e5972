"""Optimizers of PyTorch and of other packages, as they are, for a population."""

import io
import json
import re
import sys
from functools import partial

import pandas as pd
import pytest
import torch
from command_line import ATTN, ran, refusal, result_of
from test_optimizers import STEPS, gradients_for, stepped
from tiny_training import THREE, equal, fit, interrupted

from mixerlab.checks.buildable import check_optimizer
from mixerlab.config.compose import compose
from mixerlab.config.values import check_component, checked
from mixerlab.records.schema import labels_of_replicas
from mixerlab.training.optimizers import AdamW, Muon
from mixerlab.training.population import Population
from mixerlab.training.schedules import Constant, Cosine
from mixerlab.training.torch_optimizer import TorchOptimizer


def assert_same_steps(ours, theirs, of_matrices=1e-6):
    """Of two replicas at two rates, the second with gradients that are clipped; a tolerance for matrices."""
    gradients = gradients_for(2, torch.tensor([[1e-3, 10.0]]).expand(STEPS, 2))
    (_, one), (_, other) = (stepped(make, [3e-3, 1e-3], gradients, Cosine()) for make in (ours, theirs))
    for name, values in one.items():
        tolerance = of_matrices if name in ("tall.weight", "wide.weight") else 1e-6
        torch.testing.assert_close(other[name], values, rtol=0, atol=tolerance)


def test_adamw_of_pytorch_is_ours():
    options = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    theirs = partial(TorchOptimizer, all=partial(torch.optim.AdamW, **options))
    assert_same_steps(partial(AdamW, **options), theirs)


def test_muon_of_pytorch_is_ours_on_matrices_and_each_kind_has_its_rate():
    muon = partial(torch.optim.Muon, weight_decay=0.1, momentum=0.95, adjust_lr_fn="original")
    adam = partial(torch.optim.Adam, betas=(0.8, 0.95), eps=1e-7)
    options = {"matrices": muon, "others": adam, "table_lr_scale": 0.3, "gain_lr_scale": 0.015}
    theirs = partial(TorchOptimizer, **options)
    assert_same_steps(partial(Muon, nesterov=True), theirs, of_matrices=3e-3)  # bfloat16, in any case


class Keeps(torch.optim.Optimizer):
    """Keeps its state in other dtypes than that of the parameters, in the group too, and draws."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr, "count": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] += 1
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state |= {"mean": torch.zeros_like(parameter, dtype=torch.bfloat16), "parts": {}}
                    state["parts"] = {"sum": torch.zeros_like(parameter, dtype=torch.float64)}
                state["mean"].lerp_(parameter.grad.bfloat16(), 0.1)
                state["parts"]["sum"] += parameter.grad
                noise = 0.1 * torch.randn_like(parameter) / group["count"]
                parameter -= group["lr"] * (state["mean"] + state["parts"]["sum"].float() + noise)


def test_a_resumed_run_has_the_same_bits_and_a_frozen_replica_leaves(tmp_path):
    replicas = [(1e-2, 0), (1e30, 1), (1e-3, 0)]  # the second diverges, and leaves after two epochs
    settings = {"optimizer": TorchOptimizer, "options": {"all": Keeps}, "epochs": 4, "checkpoint_every": 0}
    unbroken = fit(replicas, tmp_path / "unbroken", **settings)
    assert [results["status"] for results in unbroken.replicas] == ["finished", "diverged", "finished"]
    resumed, _ = interrupted(replicas, tmp_path / "broken", 18, **settings)
    assert resumed.resumed_after_s > 0 and equal(resumed, unbroken)
    with pytest.raises(OSError, match="power failure"):
        fit(replicas, tmp_path / "failed", **settings | {"options": {"all": Fails}})


class Fails(torch.optim.SGD):
    def step(self, closure=None):
        raise OSError("power failure")


class Averages(torch.optim.SGD):
    def eval(self):
        """As a schedule-free optimizer has."""


class Wraps(torch.optim.SGD):
    def __init__(self, params, lr, base_optimizer):
        super().__init__(params, lr)


class OfAModel(torch.optim.SGD):
    def __init__(self, model, lr=0.1, **options):
        super().__init__(model.parameters(), lr)


class Hessian(torch.optim.SGD):
    def step(self, closure=None):
        gradients = [parameter.grad for parameter in self.param_groups[0]["params"]]
        torch.autograd.grad(gradients, self.param_groups[0]["params"], gradients)


class Closes(torch.optim.SGD):
    def step(self, closure):
        closure()


class Hides(torch.optim.SGD):
    """A number that no checkpoint has."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        for group in self.param_groups:
            group["lr"] /= self.count
        super().step()


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (Averages, "optimizer.all: Averages has other parameters in eval()"),
        (Wraps, "optimizer.all: Wraps takes the model or another optimizer"),
        (OfAModel, "optimizer.all: OfAModel takes the model or another optimizer"),
        (Hessian, "optimizer=torch: optimizer.all: Hessian needs a closure or the graph of the gradients"),
        (Closes, "optimizer=torch: optimizer.all: Closes needs a closure or the graph of the gradients"),
        (Hides, "optimizer=torch: interrupted and resumed its step moves otherwise"),
        (torch.optim.Muon, "optimizer.all: Muon: Muon only supports 2D"),
        (Population, "optimizer.all: Population must be a subclass of torch.optim.optimizer.Optimizer"),
        (None, "optimizer.all must have a class"),
    ],
)
def test_what_needs_more_than_gradients_is_refused_by_name(optimizer, message):
    made_of = None if optimizer is None else {"_target_": f"{optimizer.__module__}.{optimizer.__name__}"}
    optimizer = {"name": "torch", "_target_": f"{TorchOptimizer.__module__}.TorchOptimizer", "lr": 1e-3, "all": made_of}
    with pytest.raises(ValueError, match=re.escape(message)):
        check_component("optimizer", optimizer)
        schedule = {"name": "constant", "_target_": f"{Constant.__module__}.Constant"}
        check_optimizer(json.dumps([optimizer, schedule]), "")


def test_an_optimizer_whose_package_is_missing_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    error = refusal("mixer=attn", "task=icr", "optimizer=lion", "dry_run=true")
    assert error.endswith("is not installed: pip install 'mixerlab[optimizers]'\n")


def test_an_optimizer_of_one_model_says_how_a_run_trains_by_it():
    with pytest.raises(
        ValueError, match=r"optimizer=sgd: SGD .*: optimizer=torch 'optimizer.all={_target_: torch.optim."
    ):
        check_component("optimizer", {"name": "sgd", "_target_": "torch.optim.SGD", "lr": 1e-3})


def test_a_run_is_told_by_the_classes_inside_it():
    matrices = "optimizer.matrices={_target_: torch.optim.Muon, ns_steps: 3}"
    _, config, _ = checked(compose(*ATTN, "optimizer=torch", matrices, "optimizer.others={_target_: torch.optim.SGD}"))
    told = labels_of_replicas(config)[0]["hparams"]
    assert told["optimizer.matrices._target_"] == "torch.optim.Muon" and told["optimizer.matrices.ns_steps"] == 3
    assert told["optimizer.others._target_"] == "torch.optim.SGD" and "optimizer._target_" not in told
    assert told["optimizer.matrices.momentum"] == 0.95  # a default


PACKAGES = {
    "lion": 1e-3,  # these four: with our yaml
    "normuon": 1e-2,
    "scion": 1e-2,
    "soap": 1e-2,
    "pytorch_optimizer.Prodigy": 1.0,
    "heavyball.SOAP": 3e-3,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKAGES)
def test_published_optimizers_train(tmp_path, name, monkeypatch):
    package = name.partition(".")[0] if "." in name else "pytorch_optimizer"
    pytest.importorskip(package, reason="needs pip install mixerlab[optimizers]")
    if package == "heavyball":
        monkeypatch.setattr("heavyball.utils.compile_mode", None)  # it would compile for a minute
    chosen = ["optimizer=torch", f"optimizer.all={{_target_: {name}}}"] if "." in name else [f"optimizer={name}"]
    options = *chosen, f"optimizer.lr={PACKAGES[name]}", "trainer.epochs=10"
    ran(*ATTN, *options, "trainer.checkpoint_every=1000", f"results_dir={tmp_path}")
    _, metrics = result_of(tmp_path)
    losses = pd.read_csv(io.BytesIO(metrics))["train_loss"].tolist()
    assert losses[-1] < 0.9 * losses[0], losses


@pytest.mark.gpu
def test_on_a_gpu_forward_and_backward_are_captured(tmp_path):
    settings = {"optimizer": TorchOptimizer, "options": {"all": Keeps}, "accelerator": "gpu", "epochs": 6}
    captured = fit(THREE, tmp_path / "captured", **settings)
    assert not any("capture failed" in note for note in captured.notes)
    launched = fit(THREE, tmp_path / "launched", cuda_graph=False, **settings)
    losses = [torch.from_numpy(result.metrics["train_loss"].to_numpy()) for result in (captured, launched)]
    torch.testing.assert_close(*losses, rtol=2e-2, atol=2e-3)
