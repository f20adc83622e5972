"""How far the finalists are from the paper's 30 means, as far as they were run.

    python results/screen/distance.py OUT.md

Needs the repository root on PYTHONPATH. A mean of a task is over all its settings. Where a finalist has a setting, its
official accuracy at the best of the three rates stands for it; elsewhere that of results/draft (PyTorch's default
initial values), so a mean is partly the default recipe's: `run` says how many settings are the finalist's own. One
seed. A mixer for which two finalists set the same was run for the first of them only.
"""

import csv
import json
import sys
from collections import defaultdict
from itertools import product
from pathlib import Path
from statistics import fmean

from mixerlab.results.plan import RECIPES

RESULTS = Path(__file__).parents[1]
MIXERS = ("attn", "parallax", "gdn", "mamba", "mesa")
TASKS = ("cmp", "icr", "fcr", "ncr", "mem", "sc")
ORDER = list(product(MIXERS, TASKS))
FINALISTS = ("2x64", "plain", "4x32")


def best(path: Path, recipe: str | None = None) -> dict[tuple[str, str, str], float]:
    """The highest official accuracy of a (mixer, task, setting) over its rates."""
    found: dict[tuple[str, str, str], float] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["status"] == "finished" and recipe in (None, row.get("recipe")):
                key = row["mixer"], row["task"], row["setting"]
                found[key] = max(found.get(key, 0.0), float(row["official_accuracy"]))
    return found


def rmse(pairs: list[tuple[float, float]]) -> float:
    return fmean((ours - theirs) ** 2 for ours, theirs in pairs) ** 0.5


def finalists() -> dict[str, dict[tuple[str, str, str], float]]:
    """What each finalist reached where it was run, by its name."""
    rows = RESULTS / "screen" / "finalist_rows.csv"
    own = {name: best(rows, name) for name in FINALISTS}
    shared = {
        name: {key: score for key, score in own["2x64"].items() if RECIPES[name][key[0]] == RECIPES["2x64"][key[0]]}
        for name in FINALISTS
    }
    return {name: shared[name] | own[name] for name in FINALISTS if own[name]}


def main() -> None:
    draft = best(RESULTS / "draft" / "rows.csv")
    paper = json.loads((RESULTS / "published" / "parallax_paper.json").read_text())["means"]
    printed = {(m, t): paper[t][paper["columns"].index(m)] for m in MIXERS for t in TASKS}
    settings = defaultdict(list)
    for mixer, task, setting in draft:
        settings[mixer, task].append(setting)
    lines, whole = [], defaultdict[str, list[tuple[float, float]]](list)
    for finalist, reached in finalists().items():
        lines += [
            f"| mixer, task | run | default there | {finalist} there | default, whole task | with {finalist} where run"
            " | paper |",
            "|---|---|---|---|---|---|---|",
        ]
        whole["default"] = []
        for (mixer, task), names in sorted(settings.items(), key=lambda item: ORDER.index(item[0])):
            run = [name for name in names if (mixer, task, name) in reached]
            default = {name: draft[mixer, task, name] for name in names}
            mixed = {name: reached.get((mixer, task, name), default[name]) for name in names}
            means = (
                [fmean(default[name] for name in run), fmean(reached[mixer, task, name] for name in run)] if run else []
            )
            shown = [f"{value:.3f}" for value in means] or ["-", "-"]
            default_mean, mixed_mean, wanted = fmean(default.values()), fmean(mixed.values()), printed[mixer, task]
            lines.append(
                f"| {mixer} {task} | {len(run)} of {len(names)} | {shown[0]} | {shown[1]} |"
                f" {default_mean:.3f} | {mixed_mean:.3f} | {wanted:.3f} |"
            )
            whole["default"].append((default_mean, wanted))
            whole[finalist].append((mixed_mean, wanted))
            kept = default_mean if mixer == "mamba" else mixed_mean
            whole[f"{finalist} but mamba's dt bias"].append((kept, wanted))
        lines.append("")
    lines += ["RMSE over the 30 means, settings that were not run at their default value:", ""]
    lines += [f"- {name}: {rmse(pairs):.3f}" for name, pairs in whole.items()]
    Path(sys.argv[1]).write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
