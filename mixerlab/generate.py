"""Reads the test rows of a trained model token by token, from a state, and scores it as the table does."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from mixerlab.loading import load
from mixerlab.models.language_model import LanguageModel
from mixerlab.tasks.data import load_or_generate
from mixerlab.training.metrics import batch_scores, means_of


@torch.no_grad()
def generate(
    run_folder: str | Path,
    replica: int | None = None,
    selection: Literal["official", "clean"] = "official",
    *,
    bf16: bool = False,
    device: str | torch.device = "cpu",
    config_dir: str | Path | None = None,
) -> dict[str, float]:
    """The test scores of a model whose tokens come one by one: `training.metrics.means_of`, of batches as the run's.

    Each token is the row's own, as in the table, and not the model's prediction.

    Args:
        run_folder, replica, selection, config_dir: as for `mixerlab.load`.
        bf16: under bfloat16 autocast, and not in float32.

    Raises:
        ValueError: as `mixerlab.load`, or an auto-encoder, which reads its row at once.
    """
    loaded = load(run_folder, replica, selection, config_dir=config_dir)
    model, options = loaded.model.to(device), loaded.config["task"]
    if not isinstance(model, LanguageModel):
        raise ValueError(
            f"task={options['name']}: an auto-encoder rebuilds its row from one vector, not token by token"
        )
    rows = load_or_generate(loaded.task, options["data_dir"], options["allow_shared_rows"])["test"]
    batches = (torch.from_numpy(x).to(device).split(loaded.config["trainer"]["batch_size"]) for x in rows)
    sums = []
    for inputs, targets in zip(*batches, strict=True):
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=bf16):
            state, logits = model.init_state(*inputs.shape), []
            for token in inputs.split(1, dim=1):
                next_logits, state = model.step(token, state)
                logits.append(next_logits)
            sums.append(batch_scores(torch.cat(logits, dim=1)[None], targets[None]))
    return {name: value.item() for name, value in means_of(torch.stack(sums).sum(dim=0)).items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="mixerlab generate", description=__doc__)
    parser.add_argument("run", help="results/runs/<run_id>, of a run that kept its weights")
    parser.add_argument("--bf16", action="store_true", help="under bfloat16 autocast instead of in float32")
    parser.add_argument("--config-dir", type=Path, help="your own folder of yamls; classes are found beside it")
    args = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        scores = generate(args.run, bf16=args.bf16, device=device, config_dir=args.config_dir)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from error
    print("  ".join(f"{name} {value:.4f}" for name, value in scores.items()))
