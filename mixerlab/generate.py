"""Reads the test rows of a trained model token by token, from a state, and scores it as the table does.

With --prompt it continues a text, after task=text.
"""

import argparse
import inspect
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from mixerlab.config.project import ConfigDir
from mixerlab.loading import check_files, load, splits_of
from mixerlab.mixers.cache import State
from mixerlab.models.language_model import LanguageModel
from mixerlab.tasks.text import Text
from mixerlab.training.capture import Step, captured
from mixerlab.training.metrics import batch_scores, means_of, with_score


class TokenReader:
    """Reads rows of one shape token by token, under the autocast under which it is made.

    `step` gives the logits `[batch, 1, V]` of the next tokens, int64 `[batch, 1]`; the next step may overwrite them. On
    a GPU it is a CUDA graph (`is_captured`) if each mixer changes its state in place, and CUDA can capture it.
    """

    def __init__(self, model: LanguageModel, batch: int, length: int):
        self.model, self.shape = model, (batch, length)
        self.states: list[State] = model.init_state(batch, length)
        self.step: Step = self._step
        self.is_captured = False
        if model.head.weight.is_cuda:
            self._capture(torch.zeros(batch, 1, dtype=torch.int64, device=model.head.weight.device))

    def __call__(self, rows: Tensor) -> Tensor:
        """The logits `[batch, length, V]` of `rows` `[batch, length]`, int64."""
        self.restart()
        return torch.cat([self.step(tokens).clone() for tokens in rows.split(1, dim=1)], dim=1)

    def restart(self) -> None:
        """The next step is the first of its sequences."""
        fresh = self.model.init_state(*self.shape)
        if self.is_captured:
            for place, value in zip(_tensors(self.states), _tensors(fresh), strict=True):
                place.copy_(value)
        else:
            self.states = fresh

    def _step(self, tokens: Tensor) -> Tensor:
        logits, self.states = self.model.prefill(tokens, self.states)
        return logits

    def _capture(self, tokens: Tensor) -> None:
        before = _tensors(self.states)
        self._step(tokens)
        in_place = [*map(id, before)] == [*map(id, _tensors(self.states))]
        self.restart()
        if in_place:
            self.step, refusal = captured(self._step, _tensors(self.states), tokens)
            self.is_captured = refusal is None


def _tensors(states: Sequence[State]) -> list[Tensor]:
    return [tensor for state in states for tensor in state.values()]


@torch.no_grad()
def generate(
    run_folder: str | Path,
    replica: int | None = None,
    *,
    bf16: bool = False,
    device: str | torch.device = "cpu",
    config_dir: ConfigDir = None,
) -> dict[str, float]:
    """The test scores of a model whose tokens come one by one: `training.metrics.with_score`, of batches as the run's.

    Each token is the row's own, as in the table, and not the model's prediction. `bf16`: under bfloat16 autocast. The
    other arguments are those of `mixerlab.load`. ValueError as there, for data that has changed since, and for an
    auto-encoder, which reads its row at once.
    """
    loaded = load(run_folder, replica, config_dir=config_dir)
    model, name = loaded.model.to(device), loaded.config["task"]["name"]
    if not isinstance(model, LanguageModel):
        raise ValueError(f"task={name}: an auto-encoder rebuilds its row from one vector, not token by token")
    rows = splits_of(loaded.task, loaded.config)["test"]
    size = loaded.config["trainer"]["batch_size"]
    batches = (torch.from_numpy(x.astype(np.int64)).to(device).split(size) for x in rows)
    readers: dict[torch.Size, TokenReader] = {}  # the last batch may be smaller
    sums = []
    with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=bf16):
        for inputs, targets in tqdm([*zip(*batches, strict=True)], "batches of test rows"):
            if inputs.shape not in readers:
                readers[inputs.shape] = TokenReader(model, *inputs.shape)
            sums.append(batch_scores(readers[inputs.shape](inputs)[None], targets[None]))
    means = with_score(means_of(torch.stack(sums).sum(dim=0)), "test", loaded.task.score, loaded.task.score_from)
    return {name: value.item() for name, value in means.items()}


@torch.no_grad()
def continue_text(
    run_folder: str | Path,
    prompt: str,
    tokens: int = 256,
    temperature: float = 1.0,
    seed: int = 0,
    *,
    device: str | torch.device = "cpu",
    config_dir: ConfigDir = None,
) -> str:
    """The prompt and `tokens` more, each drawn from the softmax of the logits over `temperature`, in float32.

    At a temperature of 0 each is the likeliest token.

    ValueError as `mixerlab.load`; for a run of another task than text, or of a BPE of another text by now; for an empty
    prompt or a number below 0.
    """
    loaded = load(run_folder, config_dir=config_dir)
    task, model = loaded.task, loaded.model.to(device)
    if not isinstance(task, Text) or not isinstance(model, LanguageModel):
        raise ValueError(f"task={loaded.config['task']['name']} has no text to continue: --prompt is for task=text")
    if task.bpe is not None:  # of another text it has other tokens
        check_files(task, loaded.config)
    if not (ids := task.encode(prompt)) or tokens < 0 or not temperature >= 0:
        given = f"prompt={prompt!r}, tokens={tokens}, temperature={temperature}"
        raise ValueError(f"{given}: the prompt must not be empty, and the numbers at least 0")
    length = len(ids) + tokens
    reader, generator = TokenReader(model, 1, length), torch.Generator(device).manual_seed(seed)
    for position in range(length - 1):
        logits = reader.step(torch.tensor([[ids[position]]], device=device))[0, 0].float()
        if position + 1 == len(ids):
            # At 0, and at what float32 cannot divide by, all but the likeliest tokens get the weight 0.
            weights = ((logits - logits.max()) / max(temperature, 1e-30)).softmax(dim=0)
            ids.append(int(torch.multinomial(weights, 1, generator=generator)))
    return task.decode(ids)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="mixerlab generate", description=__doc__, argument_default=argparse.SUPPRESS)
    parser.add_argument("run_folder", metavar="RUN", help="results/runs/<run_id>, of a run that kept its weights")
    parser.add_argument("--bf16", action="store_true", help="scores under bfloat16 autocast instead of in float32")
    parser.add_argument("--config-dir", action="append", help="your own folder of yamls; classes are found beside it")
    parser.add_argument("--prompt", help="a text to continue, in place of the scores")
    parser.add_argument("--tokens", type=int, help="by so many tokens (default: 256)")
    parser.add_argument("--temperature", type=float, help="of the softmax (default: 1; 0: the likeliest)")
    parser.add_argument("--seed", type=int, help="of what is drawn (default: 0)")
    args = vars(parser.parse_args(arguments))
    args["device"] = "cuda" if torch.cuda.is_available() else "cpu"
    function = continue_text if "prompt" in args else generate
    if unused := [key for key in args if key not in inspect.signature(function).parameters]:
        raise ValueError(f"--{unused[0]} works only {'without' if 'prompt' in args else 'with'} --prompt")
    made = function(**args)
    print(made if isinstance(made, str) else "  ".join(f"{name} {value:.4f}" for name, value in made.items()))
