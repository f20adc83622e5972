"""What a run costs a GPU, by the wall times of the runs whose rows are here: `results/plan.py` asks for it."""

import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from statistics import fmean, median
from typing import ClassVar

import pandas as pd

import mixerlab
from mixerlab.config.settings import settings_of

RESULTS = Path(__file__).parent
DEFAULT = "default"  # the recipe of conf/
LEAST_REPLICAS = 1.5  # below BUSY tokens a single one takes half the time of three (README.md, on a GPU)
BUSY = 1024  # from here on a single replica fills the GPU


@cache
def lengths(task: str) -> dict[str, int]:
    """The length of each setting of a task, in the order of its yaml."""
    cfg = mixerlab.compose(f"task={task}").task
    base = dict(cfg.get("baseline", {}))
    return {name: (base | changed)["seq_len"] for name, changed in settings_of(cfg).items()}


def processes_per_gpu(command: str) -> float:
    """How many processes shared a GPU, by the command that started `results/train.py`."""
    given = {name: int(count) for name, count in re.findall(r"--(processes|gpus) (\d+)", command)}
    assert "processes" in given, f"not a command of results/train.py: {command}"
    return given["processes"] / given.get("gpus", 1)


def charged(task: str, setting: str, replicas: int) -> float:
    """As many replicas side by side cost what these cost."""
    return max(replicas, LEAST_REPLICAS if lengths(task)[setting] < BUSY else 1)


class Costs:
    """GPU seconds of a replica, by what runs took that were made (SOURCES).

    A cell that its recipe has not run takes what the default's took, times what the recipe costs more on the cells that
    both have (the median over those of the mixer). Where the default has not run it either, the same holds of the
    draft; where not even that was run, the task's longest setting stands in, with a time that grows as length^1.2, as
    from 128 to 1,024 tokens.
    """

    # File, its recipe (None: it has a column), and processes on each GPU (None: by its column `command`). A later
    # file's time of a cell counts.
    SOURCES = (
        ("rounding/rows.csv", "draft", 2),
        ("screen/rows.csv", None, 3),
        ("screen/finalist_rows.csv", None, None),
        ("screen/variant_rows.csv", None, 3),
        ("table/rows.csv", DEFAULT, None),
        ("challenge/recipe_rows.csv", None, None),
    )
    # Recipes that take as long as another one: `-` is all factors of the screen at their lower level.
    SAME: ClassVar = {"-": "draft", DEFAULT: "2x64"}

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str, str], float] = {}
        for name, recipe, per_gpu in self.SOURCES:
            found = defaultdict(list)
            frame = pd.read_csv(RESULTS / name, low_memory=False)
            frame = frame[frame["status"] == "finished"]
            for _, run in frame.groupby("run_id"):
                row = run.iloc[0]
                named = recipe or row["recipe"]
                used = self.SAME.get(named, named)
                cell = row["task"], row["setting"]
                shared_by = per_gpu or processes_per_gpu(row["command"])
                replica = row["wall_time_s"] / shared_by / charged(*cell, len(run))
                found[used, row["mixer"], *cell].append(replica)
            self._known |= {key: fmean(values) for key, values in found.items()}

    def of_replica(self, recipe: str, mixer: str, task: str, setting: str) -> float:
        recipe = self.SAME.get(recipe, recipe)
        default = self.SAME[DEFAULT]
        if (known := self._known.get((recipe, mixer, task, setting))) is not None:
            return known
        if (known := self._known.get((default, mixer, task, setting))) is not None:
            return known * self._ratio(recipe, default, mixer)
        return self._draft(mixer, task, setting) * self._ratio(recipe, "draft", mixer)

    def _draft(self, mixer: str, task: str, setting: str) -> float:
        if (known := self._known.get(("draft", mixer, task, setting))) is not None:
            return known
        base = task.removesuffix("_challenge").removesuffix("_vocab")
        length, of_base = lengths(task)[setting], lengths(base)
        nearest = min(of_base, key=lambda name: (abs(of_base[name] - length), name != "baseline"))
        return self._known["draft", mixer, base, nearest] * (length / of_base[nearest]) ** 1.2

    def _ratio(self, recipe: str, base: str, mixer: str) -> float:
        ratios = [
            seconds / self._known[base, *cell]
            for (name, *cell), seconds in self._known.items()
            if name == recipe and cell[0] == mixer and (base, *cell) in self._known
        ]
        return median(ratios) if ratios else 1.0
