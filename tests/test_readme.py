"""The README's examples work as they stand."""

import importlib
import re
import shlex
import sys
from functools import partial

import pytest
import task_contract
import torch
from command_line import ROOT, TINY, ran, result_of
from torch import nn

import mixerlab
from mixerlab.checks import command as check
from mixerlab.training.population import Population
from mixerlab.training.schedules import Cosine
from mixerlab.training.torch_optimizer import TorchOptimizer

FOLDERS = ("", "mixers/", "tasks/", "sweeps/", "training/")
PAGES = {page: (ROOT / page).read_text() for page in (f"{folder}README.md" for folder in FOLDERS)}
OVERVIEWS = {page: (ROOT / page).read_text() for page in ("kernels/README.md", "benchmarks/README.md")}


def blocks(language):
    text = "\n".join(PAGES.values())
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def write_files(folder):
    for text in (*blocks("python"), *blocks("yaml")):
        (first, *_) = (line for line in text.splitlines() if not line.startswith("# @package"))
        path = folder / first.removeprefix("# ")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def project(tmp_path, monkeypatch):
    write_files(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])  # to which the project is added
    for name in list(sys.modules):  # of other tests
        if name.partition(".")[0] in ("mixers", "tasks", "optimizers", "schedules"):
            monkeypatch.delitem(sys.modules, name)
    return tmp_path


def run_in(project, *arguments):
    ran("--config-dir", str(project / "conf"), *arguments, *TINY, f"results_dir={project / 'results'}")
    return result_of(project / "results")


def executed(path):
    """The names that a Python file of the pages leaves, with a tiny run."""
    exec(path.read_text().replace('"experiment=quickstart"', ", ".join(map(repr, TINY))), names := {})
    return names


def test_the_new_mixer_keeps_the_contract(project, capsys):
    check.main(["ema", "--config-dir", str(project / "conf")])
    assert "ema keeps the contract" in capsys.readouterr().out


@pytest.mark.slow
def test_the_own_step_is_that_of_a_package(project, monkeypatch):
    package = pytest.importorskip("pytorch_optimizer", reason="needs pip install mixerlab[optimizers]")
    monkeypatch.syspath_prepend(project)
    own = importlib.import_module("optimizers.lion").Lion
    ends = []
    for make in (
        partial(own, betas=(0.9, 0.99), weight_decay=0.3),
        partial(TorchOptimizer, all=partial(package.Lion, betas=(0.9, 0.99), weight_decay=0.3)),
    ):
        population = Population(partial(nn.Linear, 8, 4), seeds=(0, 1))
        optimizer = make(population, [1e-2, 1e-3], Cosine(), 20)
        generator = torch.Generator().manual_seed(0)
        for _ in range(20):
            shape = population.parameters_by_replica.shape
            population.parameters_by_replica.grad = torch.randn(shape, generator=generator)
            optimizer.step()
        ends.append(population.parameters_by_replica.detach())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-6)


def test_the_new_experiment_is_a_sweep(project):
    dry = ran("--config-dir", str(project / "conf"), "-m", "experiment=small", "dry_run=true")
    assert "4 runs, 0 of them finished" in dry.out


def test_the_new_task_keeps_the_contract(project):
    config = mixerlab.compose("task=delay", config_dir=project / "conf").task
    task_contract.check_everything(config, "delay")


def test_the_new_task_has_sizes_of_its_own_in_an_experiment(project):
    sizes = project / "conf" / "sizes" / "quickstart_delay.yaml"
    sizes.parent.mkdir(exist_ok=True)
    sizes.write_text("seq_len: 24\n")
    task = mixerlab.compose("task=delay", "experiment=quickstart", config_dir=project / "conf").task
    assert (task.seq_len, task.num_train_examples) == (24, 3200)


def test_the_new_mixer_trains_on_the_new_task_with_the_new_optimizer_and_schedule(project):
    record, _ = run_in(project, "mixer=ema", "task=delay", "optimizer=signum", "schedule=halved")
    names = ("mixer", "task", "optimizer", "schedule", "status")
    assert {tuple(row[name] for name in names) for row in record["rows"]} == {
        ("ema", "delay", "signum", "halved", "finished")
    }
    loaded = mixerlab.load(project / "results" / "runs" / record["run_id"], config_dir=project / "conf")
    assert type(loaded.model.blocks[0].mixer).__name__ == "MovingAverage"


def test_the_new_score_is_in_the_record_of_a_run_by_the_new_step(project):
    bits = "task._target_=tasks.bits.DelayInBits"
    record, metrics = run_in(project, "mixer=attn", "task=delay", bits, "optimizer=own_lion")
    assert {(row["optimizer"], row["status"]) for row in record["rows"]} == {("own_lion", "finished")}
    assert "official_bits_per_token" in record["rows"][0] and b"val_bits_per_token" in metrics


def test_the_new_hybrid_composes(project):
    config = mixerlab.compose("mixer=striped", config_dir=project / "conf").mixer
    assert config.options["0"].num_heads == 4 and [layer.name for layer in config.options.values()] == ["gdn", "attn"]


COMMANDS = [
    line.partition(" #")[0].strip().removeprefix("python run.py ").removeprefix("mixerlab ")
    for block in blocks("bash")
    for line in block.replace("\\\n", "").replace(" && ", "\n").splitlines()
    if line.startswith(("python run.py", "mixerlab "))
    and not line.startswith(("mixerlab report", "mixerlab compare", "mixerlab generate"))
    and " -m experiment=" not in line  # `test_sweep_cells` composes these
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_compose(command, tmp_path):
    if "sweeper=optuna" in command:
        pytest.importorskip("optuna")
    (tmp_path / "book.txt").write_text("It was. " * 5000)
    command = command.replace("book.txt", str(tmp_path / "book.txt"))
    assert ran(*shlex.split(command), "dry_run=true", f"results_dir={tmp_path}").out


def test_the_python_example_runs(project, monkeypatch):
    monkeypatch.chdir(project)
    names = executed(project / "example.py")
    assert names["record"].status == "finished" and len(names["rows"]) == len(names["record"].rows)
    assert isinstance(names["model"], torch.nn.Module)


def test_the_attention_map_is_drawn(project, monkeypatch):
    monkeypatch.chdir(project)
    heads = torch.from_numpy(executed(project / "attention_map.py")["maps"][2])
    torch.testing.assert_close(heads.tril().sum(dim=-1), torch.ones(heads.shape[:2], dtype=heads.dtype))
    assert (project / "attention_map.png").exists()


def test_a_mixer_continues_from_its_state(project):
    assert int(executed(project / "token_by_token.py")["t"]) == 31


def test_a_loop_of_ones_own_gets_the_rows(project):
    names = executed(project / "rows.py")
    assert names["inputs"].shape == names["targets"].shape == (12_800, 255)


@pytest.mark.slow
def test_a_mixer_runs_outside_of_mixerlab(project, monkeypatch):
    """Its graph is compiled, but not to code for the processor, which takes a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    assert executed(project / "outside.py")["loss"].isfinite()


def test_the_kernels_example_runs():
    (example,) = re.findall(r"^```python\n(.*?)^```", OVERVIEWS["kernels/README.md"], flags=re.DOTALL | re.MULTILINE)
    names = {}
    exec(example, names)
    assert names["o"].shape == names["q"].grad.shape


@pytest.mark.parametrize("page", [*PAGES, *OVERVIEWS])
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)", (PAGES | OVERVIEWS)[page]):
        assert link.startswith("https://") or (ROOT / page).parent.joinpath(link).exists(), link
