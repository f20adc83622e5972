"""Trains the cells of a list with mad-lab's own train.py, in several processes, for so many seconds.

    python results/parity/theirs.py MADLAB_DIR LIST.csv DATA_DIR OUT.csv --processes 8 --gpus 2 --seconds 570

Needs the repository root on PYTHONPATH, and pytorch_lightning, torchmetrics, einops, pandas and tqdm. MADLAB_DIR is a
checkout of mad-lab (https://github.com/athms/mad-lab, seen at 0f49a45), LIST.csv and DATA_DIR are from cells.py.
OUT.csv gets a row for each run and seed that ends, and those that it has are skipped: it is all that another machine
needs to go on. mad-lab cannot continue a run, so none begins whose estimated time is more than what is left.

mad-lab's `train()` is called as its benchmark.py calls it: its train.py has another norm on the command line, and
cannot train `compression` from there. The rate is constant, a run stops above an accuracy of 0.999, and reports the
checkpoint of the lowest test perplexity. Its seed orders the training rows; here the same seed draws the initial
values, which mad-lab leaves to chance.

tests/parity/madlab.py says what stands in for CUDA extensions. On a GPU ours stands in for the selective scan as well
(kernels/selective_scan), since the backward of mad-lab's reference writes the whole sequence once for each position;
each process first checks on its device that both compute the same.
"""

import argparse
import contextlib
import csv
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mixerlab.results.portions import Job, Outcome, ended_well, work_through

COLUMNS = ("mixer", "task", "setting", "lr", "weight_decay", "seed", "accuracy", "perplexity", "best_epoch", "epochs")
COLUMNS += ("wall_time_s", "device", "torch", "lightning")
KEY = ("mixer", "task", "setting", "lr", "weight_decay", "seed")
# Seconds for a step in one of four processes on a GPU, for the choice of what still fits into the time. An H200 starts
# some 240 steps a second for all its processes together: eight beside two of ours made 20 to 35 each, attention or
# mamba, and a single one of attention 153.
SECONDS_PER_STEP = {"attn": 1 / 55, "mamba": 1 / 55}


def read_done(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def jobs_of(path: Path, done: list[dict[str, str]], epochs: int) -> list[Job]:
    """A job for each seed of each line that is not done: by itself, since mad-lab shares nothing between runs.

    The longest come first: a long one that begins last leaves the other processes idle, or does not end in time.
    """
    from mixerlab.results.parity.cells import task_of

    finished = {tuple(row[key] for key in KEY) for row in done}
    jobs = []
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            rows = task_of([text for text in row["overrides"].split() if text.startswith("task")]).num_train_examples
            seconds = -(-rows // 128) * epochs * SECONDS_PER_STEP[row["mixer"]]
            for seed in row["seeds"].split(","):
                if tuple((row | {"seed": seed})[key] for key in KEY) not in finished:
                    name = f"{row['unit']} {seed}"
                    jobs.append(Job(name, name, seconds, row | {"seed": seed}))
    return sorted(jobs, key=lambda job: -job.seconds)


def selective_scan(u, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state):
    """Ours with the arguments of mad-lab's `selective_scan_ref`, which has channels before positions."""
    from mixerlab.kernels.selective_scan import selective_scan as ours

    assert delta_softplus and not return_last_state
    u, delta, B, C, z = (x.transpose(1, 2) for x in (u, delta, B, C, z))
    return ours(u, delta, delta_bias, A, B, C, D, z).transpose(1, 2)


def check_scan(reference: Callable, device: str) -> None:
    """Raises AssertionError if the scans or their gradients differ by more than 1e-4 of the largest element."""
    import torch

    torch.manual_seed(0)
    batch, channels, length, states = 2, 256, 127, 4
    wide, narrow = (batch, channels, length), (batch, states, length)
    shapes = {"u": wide, "delta": wide, "A": (channels, states), "B": narrow, "C": narrow, "D": (channels,), "z": wide}
    inputs = {name: torch.randn(shape, device=device) for name, shape in (shapes | {"delta_bias": (channels,)}).items()}
    inputs["A"] = -inputs["A"].exp()
    inputs = {name: value.requires_grad_() for name, value in inputs.items()}
    weights = torch.randn(wide, device=device)
    made = []
    for scan in (reference, selective_scan):
        out = scan(**inputs, delta_softplus=True, return_last_state=False)
        made.append([out, *torch.autograd.grad((out * weights).sum(), list(inputs.values()))])
    for name, expected, found in zip(("out", *inputs), *made, strict=True):
        scale = expected.abs().max().item()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * scale, msg=lambda text, n=name: f"{n}: {text}")


def trainer(root: Path, data_dir: Path, logs: Path, epochs: int, precision: str) -> Callable[[Mapping[str, str]], dict]:
    """What trains one run of mad-lab's, in a process of its own."""
    logs.mkdir(parents=True, exist_ok=True)
    said = os.open(logs / f"process-{os.getpid()}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)  # progress bars
    os.dup2(said, 2)
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # its checkpoints hold its config, which torch 2.6 refuses
    os.environ["OMP_NUM_THREADS"] = "1"  # processes side by side; what they compute is on the GPU
    os.chdir(root)  # its paths are relative
    import importlib

    import pytorch_lightning
    import torch

    from mixerlab.results.parity.cells import task_of
    from mixerlab.tasks.data import dataset_folder
    from mixerlab.tests.parity.madlab import TASKS, build, load_madlab

    madlab = load_madlab(root)
    their_train, configs = importlib.import_module("train"), importlib.import_module("mad.configs")
    reference = madlab.mamba.selective_scan_fn

    def train(run: Mapping[str, str]) -> dict[str, Any]:
        task = task_of([text for text in run["overrides"].split() if text.startswith("task")])
        fields = ("vocab_size", "seq_len", "num_train_examples", "num_test_examples", "frac_noise", "noise_vocab_size")
        fields += ("num_tokens_to_copy", "k_motif_size", "v_motif_size")
        given = {name: getattr(task, name) for name in fields if hasattr(task, name)}
        given |= {"lr": float(run["lr"]), "weight_decay": float(run["weight_decay"]), "seed": int(run["seed"])}
        config = configs.MADConfig(
            task=TASKS[run["task"]], data_path=str(data_dir), epochs=epochs, precision=precision, **given
        )
        rows, theirs = data_dir / dataset_folder(task), Path(config.dataset_path)
        with contextlib.suppress(FileExistsError):  # the seed is part of their folder's name: the same rows for all
            theirs.symlink_to(rows, target_is_directory=True)
        if theirs.resolve() != rows.resolve():
            raise ValueError(f"{theirs} is not {rows}: give a DATA_DIR of its own")
        if run["mixer"] == "mamba" and torch.cuda.is_available() and madlab.mamba.selective_scan_fn is reference:
            check_scan(reference, "cuda")
            madlab.mamba.selective_scan_fn = selective_scan
        began = time.monotonic()
        model = build(madlab, run["task"], run["mixer"], task.vocab_size, task.seq_len, int(run["seed"]))
        folder = logs / "-".join(run[key] for key in KEY)
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        scores = their_train.train(model, config, str(folder), log_to_csv=False).iloc[0]
        ended = {
            name: torch.load(folder / "checkpoints" / f"{name}.ckpt", map_location="cpu", weights_only=False)["epoch"]
            for name in ("best", "last")
        }
        shutil.rmtree(folder)
        return {
            **{key: run[key] for key in KEY},
            "accuracy": scores["test_acc"],
            "perplexity": scores["test_ppl"],
            "best_epoch": ended["best"],
            "epochs": ended["last"] + 1,
            "wall_time_s": round(time.monotonic() - began, 1),
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "torch": torch.__version__,
            "lightning": pytorch_lightning.__version__,
        }

    return train


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("madlab", type=Path)
    parser.add_argument("list", type=Path)
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--gpus", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--precision", default="bf16", help="mad-lab's default; 32 on a CPU")
    given = parser.parse_args()
    done = read_done(given.out)
    jobs = jobs_of(given.list, done, given.epochs)
    print(f"{len(done)} runs done, {len(jobs)} to do")

    def note(outcome: Outcome) -> None:
        if outcome.error:
            with given.out.with_suffix(".errors.txt").open("a") as file:
                file.write(f"{outcome.job.name}\n{outcome.error}\n")
            return
        new = not given.out.exists()
        with given.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(outcome.value)

    logs = given.out.resolve().with_suffix(".logs")
    setup = partial(trainer, given.madlab.resolve(), given.data_dir.resolve(), logs, given.epochs, given.precision)
    ended = work_through(
        jobs, setup, processes=given.processes, gpus=given.gpus, seconds=given.seconds, fit=True, done=note
    )
    return not ended_well(ended)


if __name__ == "__main__":
    sys.exit(main())
