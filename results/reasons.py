"""Why our numbers differ from the published ones, as far as an experiment shows it: a section of results/README.md.

    python results/reasons.py results/draft/rows.csv

Needs the repository root on PYTHONPATH. The source is what `sweeps.compare` takes: rows, an archive or a results
folder. results/experiments.json names the experiments: whole recipes that were run, with what they change for each
mixer, and the factors of the screen, whose effects are in a file. Which experiment bears on which number follows from
their rows, by the rules that the section states.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from mixerlab.sweeps.published import FAR, Pair, is_far, pairs_of, read_published, scores_of
from mixerlab.sweeps.sources import rows_of

RESULTS = Path(__file__).parent
README, EXPERIMENTS, PUBLISHED = RESULTS / "README.md", RESULTS / "experiments.json", RESULTS / "published"
BEGIN, END = "<!-- written by results/reasons.py -->\n", "<!-- end -->\n"
PART = 0.25  # of a difference

RULES = f"""\
The table lists those of the {{total}} published numbers that ours miss by more than {FAR}, each with the reason as far
as an experiment shows it. **Explained**: another recipe or checkpoint, in the settings that were run with it, brings
the mean to within {FAR} of the published one; ours stand in for the other settings. **In part**: it removes at least a
quarter of the difference. Only one experiment is named: the first that explains the difference, or else the one that
comes nearest. **Indicated**: on a cell of the task, a factor of the screen moves the mixer towards the published mean
by more than {FAR}, the smallest effect that counts, and by more than twice its standard error.
"""


@dataclass(frozen=True)
class Recipe:
    """A recipe or a checkpoint: what it changes by mixer, and its score by (mixer, task, setting)."""

    changes: Mapping[str, str]
    scores: Mapping[tuple[str, str, str], float]


@dataclass(frozen=True)
class Effect:
    """What a factor of the screen did to a mixer on a cell: the main effect, and its standard error."""

    what: str
    mixer: str
    task: str
    setting: str
    size: float
    error: float


def recipes_of(told: Mapping) -> list[Recipe]:
    made = []
    for recipe in told["recipes"]:
        rows = pd.read_csv(RESULTS / recipe["rows"], low_memory=False)
        rows = rows[rows["status"] == "finished"]
        if "name" in recipe:
            rows = rows[rows["recipe"] == recipe["name"]]
        by_seed = rows.groupby(["mixer", "task", "setting", "seed"])[recipe["score"]].max()  # its best rate
        made.append(Recipe(recipe["changes"], by_seed.groupby(level=[0, 1, 2]).mean().to_dict()))
    return made


def effects_of(told: Mapping) -> list[Effect]:
    """Of the mixers and tasks that have a factor: the screen's file has noise where they have not."""
    return [
        Effect(what, row["mixer"], row["task"], row["setting"], row[f"effect_{name}"], row["se"])
        for _, row in pd.read_csv(RESULTS / told["effects"]).iterrows()
        for name, factor in told["factors"].items()
        if (what := factor["changes"].get(row["mixer"])) and row["task"] in factor.get("tasks", [row["task"]])
    ]


def reason(
    pair: Pair, ours: Mapping[tuple[str, str, str], float], recipes: Iterable[Recipe], effects: Iterable[Effect]
) -> str:
    """Why this number is off.

    Args:
        pair: a complete number.
        ours: our score by (mixer, task, setting).
    """
    assert pair.ours is not None
    task, _, setting = pair.name.partition(" ")
    gap = pair.ours - pair.published
    own = {key: score for key, score in ours.items() if key[:2] == (pair.mixer, task) and setting in ("", key[2])}
    tried = []
    for recipe in (recipe for recipe in recipes if pair.mixer in recipe.changes):
        run = {key: recipe.scores[key] for key in own if key in recipe.scores}
        mean = sum({**own, **run}.values()) / len(own)
        tried.append((abs(mean - pair.published), mean, len(run), recipe))
    found = []
    if tried:
        left, mean, number, recipe = min(tried, key=lambda one: max(one[0], FAR))
        closed = 1 - left / abs(gap)
        if left <= FAR or closed >= PART:
            verdict = "Explained" if left <= FAR else f"In part ({closed:.0%})"
            extent = "" if setting else f" ({number} of {len(own)} settings run)"
            found.append(f"{verdict}: {mean:.3f} with {recipe.changes[pair.mixer]}{extent}.")
    towards = [
        f"{effect.what} {effect.size:+.2f} ({effect.setting})"
        for effect in sorted(effects, key=lambda effect: -abs(effect.size))
        if (effect.mixer, effect.task) == (pair.mixer, task)
        and effect.size * gap < 0
        and abs(effect.size) > max(FAR, 2 * effect.error)
    ]
    if towards:
        found.append(f"Indicated: {', '.join(towards)}.")
    return " ".join(found) or "Unexplained."


def section(source: str | Path) -> str:
    """The section for this source, in Markdown."""
    told = json.loads(EXPERIMENTS.read_text())
    recipes, effects = recipes_of(told), effects_of(told)
    frame = rows_of(source)
    ours = scores_of(frame)
    pairs = [pair for file in sorted(PUBLISHED.glob("*.json")) for pair in pairs_of(frame, read_published(file))]
    complete = [pair for pair in pairs if pair.complete and pair.ours is not None]
    lines = [RULES.format(total=len(pairs)), "| number | ours | published | reason |", "|---|--:|--:|---|"]
    reasons = []
    for pair in complete:
        if pair.ours is not None and is_far(pair.ours - pair.published):
            reasons.append(reason(pair, ours, recipes, effects))
            lines.append(f"| {pair.mixer} {pair.name} | {pair.ours:.3f} | {pair.published:.3f} | {reasons[-1]} |")
    unexplained = sum(text == "Unexplained." for text in reasons)
    explained = sum("Explained" in text for text in reasons)
    lines += [
        "",
        f"Off by more than {FAR}: {len(reasons)} of the {len(complete)} numbers that can be compared so far.",
    ]
    lines[-1] += f" Explained {explained}, in part or indicated {len(reasons) - explained - unexplained},"
    lines[-1] += f" unexplained {unexplained}."
    return "\n".join(lines) + "\n"


def with_section(text: str, made: str) -> str:
    """A README with the section replaced; ValueError if it has no place for one."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(
            f"{README} has no lines {BEGIN.strip()!r} and {END.strip()!r}: put them where the section goes"
        )
    return before + BEGIN + "\n" + made + "\n" + END + after


def main() -> None:
    README.write_text(with_section(README.read_text(), section(sys.argv[1])))


if __name__ == "__main__":
    main()
