"""Twenty steps of mad-lab on each task's baseline, for a test that ours makes the same: writes a golden file.

    python tests/parity/make_madlab_golden.py MADLAB_DIR tests/data/madlab

MADLAB_DIR is a checkout of mad-lab (https://github.com/athms/mad-lab; the file that is committed is of 0f49a45). Needs
torch, pytorch_lightning, torchmetrics, einops and Triton; a CPU is enough. mad-lab's generators, models, loss,
optimizer and metrics run as they are, in float32; `madlab.py` says what stands in for what needs CUDA.

`steps.json` gets the losses of the steps and the test metrics after them, and how each parameter starts; `batches.npz`
the rows: 20 batches of 16 for training and one of 64 for the test, for each task.
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from initial_values import described, drawn
from madlab import TASKS, build, load_madlab
from torch import nn

STEPS, ROWS, TEST_ROWS, SEED = 20, 16, 64, 12345
LR, WEIGHT_DECAY = 5e-4, 0.1  # of mad-lab's grid
LONG = ("fcr", "ncr", "sc")  # with attention alone: a step of mamba is the same at 32 tokens


def rows_of(madlab, task: str) -> tuple[dict, np.ndarray, np.ndarray]:
    """The task's baseline, and the inputs and targets of all batches, the test's last."""
    baseline = madlab.task_config(task)["baseline"]
    generate = getattr(madlab.instances, f"generate_{TASKS[task].replace('-', '_')}_instance")
    options = {
        key: value for key, value in baseline.items() if not key.startswith("num_t") or key == "num_tokens_to_copy"
    }
    options |= {"rng": np.random.default_rng(SEED), "multi_query": True}
    options.setdefault("noise_vocab_size", 0)
    options.setdefault("frac_noise", 0.0)
    if task == "mem":
        options["kv_map"] = madlab.instances.generate_kv_map(
            vocab_size=baseline["vocab_size"] - 1, k_motif_size=1, v_motif_size=1, seed=SEED
        )
    np.random.seed(SEED)  # noqa: NPY002 - selective copying draws from numpy's global generator
    number = STEPS * ROWS
    made = [generate(is_training=index < number, **options) for index in range(number + TEST_ROWS)]
    inputs, targets = (np.stack([row[part] for row in made]) for part in (0, 1))
    return baseline, inputs, targets


def steps(madlab, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> dict:
    """Losses of the steps, and metrics of the test batch after them."""
    settings = SimpleNamespace(
        optimizer="adamw", lr=LR, weight_decay=WEIGHT_DECAY, scheduler="none", target_ignore_index=-100
    )
    wrapper = madlab.wrapper(model, settings)
    optimizer = wrapper.configure_optimizers()
    losses = []
    for step in range(STEPS):
        rows = slice(step * ROWS, (step + 1) * ROWS)
        loss, _, _ = wrapper.step((inputs[rows], targets[rows]), step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        loss, logits, wanted = wrapper.step((inputs[STEPS * ROWS :], targets[STEPS * ROWS :]), 0)
    metrics = wrapper.test_metrics(logits, wanted)
    return {
        "losses": losses,
        "test_loss": loss.item(),
        "test_accuracy": metrics["test/Accuracy"].item(),
        "test_perplexity": metrics["test/Perplexity"].item(),
    }


def main() -> None:
    root, out = (Path(argument).resolve() for argument in sys.argv[1:])
    madlab = load_madlab(root)
    batches, cases, starts = {}, {}, {}
    for task in TASKS:
        baseline, inputs, targets = rows_of(madlab, task)
        batches[f"{task}.inputs"], batches[f"{task}.targets"] = inputs.astype(np.int16), targets.astype(np.int16)
        for mixer in madlab.mixers:
            if mixer == "mamba" and task in LONG:
                continue
            model = build(madlab, task, mixer, baseline["vocab_size"], inputs.shape[1], SEED)
            how = {name: described(parameter.detach().numpy()) for name, parameter in model.named_parameters()}
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.copy_(torch.from_numpy(drawn(name, how[name])))
            starts[f"{task}.{mixer}"] = how
            cases[f"{task}.{mixer}"] = steps(madlab, model, *(torch.from_numpy(x).long() for x in (inputs, targets)))
            print(task, mixer, cases[f"{task}.{mixer}"]["losses"][-1], flush=True)
    settings = {"lr": LR, "weight_decay": WEIGHT_DECAY, "steps": STEPS, "rows": ROWS, "test_rows": TEST_ROWS}
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"settings": settings, "cases": cases, "initial_values": starts}, indent=None, sort_keys=True)
    (out / "steps.json").write_text(text + "\n")
    np.savez_compressed(out / "batches.npz", **batches)


if __name__ == "__main__":
    main()
