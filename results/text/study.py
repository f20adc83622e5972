"""Trains what results/text compares; `python study.py CORPUS [PART ...]`, in as many processes as the GPUs can take.

Each process takes the next run that no other one trains. A run's rate is the best of three on validation after 11.8
million tokens, of another seed; it then trains on 96.7 million. Of the parts, `others` has two seeds, `controls`,
`matched` and `schedules` one, and the rest three.
"""

import gc
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

import torch

import mixerlab
from mixerlab.records.best import best_trial

RATES = {"muon": "[5e-3,1e-2,2e-2]", "adamw": "[5e-4,1e-3,2e-3]"}
STEP = 32 * 1024  # tokens
LONG, SHORT, MORE = 2950, 360, 600  # steps: of a run, of the search, of a run that goes on from weights
EVALUATIONS = 10
OTHERS = {name: [f"mixer={name}"] for name in ("gdn", "kda", "mesa", "mamba")}
OTHERS["attn+gdn"] = ["mixer=hybrid", "mixer.layers=[attn,gdn]"]
PAIR = {name: [f"mixer={name}"] for name in ("attn", "parallax")}
ALL = PAIR | OTHERS
CONTROLS = {  # beside attention or Parallax as they are
    "attn": [["model.match_params=parallax"]],
    "parallax": [
        ["mixer.head_dim=32"],
        ["mixer.rope_on_rho=false"],
        ["mixer.zero_init_rho=true"],
        ["mixer.zero_init_rho=true", "mixer.rope_on_rho=false"],
        ["mixer.rho_gate=true"],
    ],
}
SCHEDULES = [["schedule=cosine"], *([f"schedule.gamma={gamma}"] for gamma in (0.5, 1, 2))]


def train(corpus: str, name: str, optimizer: str, steps: int, rate: str, *more: str) -> mixerlab.records.schema.Record:
    """The run's record; raises `Busy` if another process trains it."""
    keys = [f"task.path={corpus}", f"task.tokens={steps * STEP}", f"trainer.eval_every={steps // EVALUATIONS}"]
    keys += [*ALL[name], f"optimizer={optimizer}", f"optimizer.lr={rate}", "trainer.progress=false", *more]
    try:
        record = mixerlab.run("experiment=text_25m", *keys)
    finally:
        gc.collect()
        torch.cuda.empty_cache()
    if record is None:
        raise Busy
    return record


class Busy(Exception):
    """Another process trains this run."""


def at_best(corpus: str, name: str, optimizer: str, *more: str, steps: int = LONG, seeds: str = "0") -> str:
    """Trains at the best rate of the search; returns the id of the run."""
    search = train(corpus, name, optimizer, SHORT, RATES[optimizer], "seed=3", "trainer.keep_weights=none")
    best, _ = best_trial(search.rows, "clean", search.score)
    return train(corpus, name, optimizer, steps, f"[{best[0]['lr']}]", f"seed=[{seeds}]", *more).run_id


def goes_on(corpus: str, name: str, optimizer: str) -> None:
    """From the weights of attention that Muon trained."""
    start = at_best(corpus, "attn", "muon", "trainer.keep_weights=official", seeds="0,1,2")
    more = [f"model.start_from=results/runs/{start}", "trainer.keep_weights=none"]
    more += ["mixer.zero_init_rho=true"] if name == "parallax" else []
    at_best(corpus, name, optimizer, *more, steps=MORE, seeds="0,1,2")


def jobs(corpus: str) -> dict[str, list[partial]]:
    pairs, others = list(product(RATES, PAIR)), list(product(RATES, OTHERS))
    run, none = partial(at_best, corpus), "trainer.keep_weights=none"
    return {
        "pair": [partial(run, name, of, "trainer.keep_weights=official", seeds="0,1,2") for of, name in pairs],
        "others": [partial(run, name, of, none, seeds="0,1") for of, name in others],
        "conversion": [partial(goes_on, corpus, name, of) for of, name in pairs],
        "controls": [partial(run, name, of, none, *keys) for of, name in pairs for keys in CONTROLS[name]],
        "schedules": [partial(run, name, of, none, *keys) for of, name in pairs for keys in SCHEDULES],
        "matched": [partial(run, name, of, none, "model.match_params=attn") for of, name in others],
    }


def main(corpus: str, parts: Sequence[str]) -> None:
    every = jobs(corpus)
    left = [job for part in parts or every for job in every[part]]
    for _ in range(20):  # what is left is tried again: another process trains it, or it ran out of memory
        left = list(undone(left))


def undone(left: Sequence[partial]) -> Iterator[partial]:
    for job in left:
        try:
            job()
        except (Busy, mixerlab.RunFailed) as error:
            print(job, repr(error)[:300], flush=True)
            yield job


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
