"""Trains what results/text compares; `python study.py CORPUS [PART ...]`, in as many processes as the GPUs can take.

Each process takes the next run that no other one trains. The rate of a mixer: the best of three on validation after
11.8 million tokens, of another seed; of `PAIR`, and of `OTHERS` with Muon, it is then halved, or else doubled, until
validation after 96.7 million is worse.
Of the parts, `others` and `family` have two seeds, `controls`, `matched` and `schedules` one, and the rest three,
which are a run each in `warm-up`.
"""

import gc
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
from math import inf
from statistics import fmean

import torch

import mixerlab
from mixerlab.records.best import best_trial
from mixerlab.records.schema import Record

RATES = {"muon": "[5e-3,1e-2,2e-2]", "adamw": "[5e-4,1e-3,2e-3]"}
LOWER = {"muon": "[1e-3,3e-3]", "adamw": "[1e-4,3e-4]"}  # of a run that goes on from weights
STEP = 32 * 1024  # tokens
LONG, SHORT, MORE = 2950, 360, 600  # steps: of a run, of the search, of a run that goes on
EVALUATIONS = 10
OTHERS = {name: [f"mixer={name}"] for name in ("gdn", "kda", "mesa", "mamba")}
OTHERS["attn+gdn"] = ["mixer=hybrid", "mixer.layers=[attn,gdn]"]
FAMILY = {name: [f"mixer={name}"] for name in ("value_average", "linear", "affine_linear", "affine_mesa", "deltanet")}
PAIR = {name: [f"mixer={name}"] for name in ("attn", "parallax")}
ALL = PAIR | OTHERS | FAMILY
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
WARM_UP = "schedule.warmup=0.05"
SCHEDULES = [["schedule=cosine"], [WARM_UP], *([f"schedule.gamma={gamma}"] for gamma in (0.5, 1, 2))]
NONE = "trainer.keep_weights=none"


class Busy(Exception):
    """Another process trains this run."""


def train(corpus: str, name: str, optimizer: str, steps: int, rate: str, seeds: str, *more: str) -> Record:
    """The run's record; raises `Busy` if another process trains it."""
    keys = [f"task.path={corpus}", f"task.tokens={steps * STEP}", f"trainer.eval_every={steps // EVALUATIONS}"]
    keys += [*ALL[name], f"optimizer={optimizer}", f"optimizer.lr={rate}", f"seed=[{seeds}]", "trainer.progress=false"]
    try:
        record = mixerlab.run("experiment=text_25m", *keys, *more)
    finally:
        gc.collect()
        torch.cuda.empty_cache()
    if record is None:
        raise Busy
    return record


def long(corpus: str, name: str, optimizer: str) -> tuple[float, Record]:
    """The best rate and its run."""
    search = train(corpus, name, optimizer, SHORT, RATES[optimizer], "3", NONE)
    first, _ = best_trial(search.rows, "clean", search.score)
    seeds, keep = ("0,1,2", "trainer.keep_weights=official") if name in PAIR else ("0,1", NONE)

    def run(rate: float) -> tuple[float, float, Record]:
        record = train(corpus, name, optimizer, LONG, f"[{rate}]", seeds, keep)
        return fmean(row["clean_val_bits_per_byte"] or inf for row in record.rows), rate, record  # None: it diverged

    best = run(first[0]["lr"])
    bracketed = name in PAIR or (name in OTHERS and optimizer == "muon")
    for factor in (0.5, 2) if bracketed else ():
        while (other := run(factor * best[1])) < best:
            best = other
    return best[1:]


def changed(corpus: str, name: str, optimizer: str, *keys: str, seed: int = 0) -> None:
    rate, _ = long(corpus, name, optimizer)
    train(corpus, name, optimizer, LONG, f"[{rate}]", str(seed), NONE, *keys)


def goes_on(corpus: str, name: str, optimizer: str) -> None:
    """From the weights of attention that Muon trained."""
    _, start = long(corpus, "attn", "muon")
    keys = [f"model.start_from=results/runs/{start.run_id}"] + ["mixer.zero_init_rho=true"] * (name == "parallax")
    train(corpus, name, optimizer, MORE, LOWER[optimizer], "0,1,2", NONE, *keys)


def jobs(corpus: str) -> dict[str, list[partial]]:
    pairs, others = list(product(RATES, PAIR)), list(product(RATES, OTHERS))
    keyed = partial(changed, corpus)
    return {
        "pair": [partial(long, corpus, name, of) for of, name in pairs],
        "others": [partial(long, corpus, name, of) for of, name in others],
        "family": [partial(long, corpus, name, "muon") for name in FAMILY],
        "conversion": [partial(goes_on, corpus, name, of) for of, name in pairs],
        "controls": [partial(keyed, name, of, *keys) for of, name in pairs for keys in CONTROLS[name]],
        "schedules": [partial(keyed, name, of, *keys) for of, name in pairs for keys in SCHEDULES],
        "warm-up": [partial(keyed, name, "adamw", WARM_UP, seed=seed) for seed in range(3) for name in PAIR],
        "matched": [partial(keyed, name, of, "model.match_params=attn") for of, name in others],
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
