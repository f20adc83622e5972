"""Why our numbers differ from the published ones, as far as an experiment shows it: a section of results/README.md.

    python results/reasons.py results/table/rows.csv

Needs the repository root on PYTHONPATH. The source is what `sweeps.compare` takes: rows, an archive or a results
folder. It has the default recipe. results/experiments.json names the experiments: whole recipes that were run, with
what they change for each mixer, and the factors of the screen, whose effects are in a file. Which experiment bears on
which number follows from their rows, by the rules that the section states.

In experiments.json, `rows` lists the files of a recipe's rows, `changes` says by mixer what differs from the default,
and `names` is the name of a recipe's rows by mixer. Of the recipes that explain a number, the section names the first:
in the file, those that change less stand first. Each recipe counts with both of CHECKPOINTS: first all with the one,
then all with the other. Of a factor, `upper`
lists the mixers whose default is its upper level: for them the change is to the lower one. `confounded` lists those
that have it, but whose effect the screen cannot tell from an interaction of others.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from textwrap import fill

import pandas as pd

from mixerlab.records.text import counted
from mixerlab.sweeps.report.published import FAR, Pair, distance, is_far, pairs_of, read_published, scores_by_seed
from mixerlab.sweeps.tables.collect import Cell
from mixerlab.sweeps.tables.sources import rows_of

RESULTS = Path(__file__).parent
README, EXPERIMENTS = RESULTS / "README.md", RESULTS / "experiments.json"
PAPER = RESULTS / "published" / "parallax_paper.json"
BEGIN, END = "<!-- written by results/reasons.py -->\n", "<!-- end -->\n"
PART = 0.25  # of a difference
ERRORS = 4  # of an effect: above 3.3, the effect of a factor that mamba does not have (results/screen/README.md)
CHECKPOINTS = {"official_accuracy": "", "test_accuracy": "the accuracy of the last epoch"}  # as a change
Scores = Mapping[Cell, Mapping[int, float]]  # by (mixer, task, setting), then by seed
RMSE, SPEARMAN, BARS, BAR = 0.06, 0.90, 40, 0.15  # what this project aims at

RULES = f"""\
The table lists those of the {{total}} published numbers that ours miss by more than {FAR}, each with the reason as far
as an experiment shows it. An experiment is another recipe or checkpoint; in settings that were not run with it, ours
stand in. We compare it with our result over the seeds that both have. The experiment counts only if our result over
those seeds is off too, and it removes at least a quarter of that difference. **Explained**: it brings the number to
within {FAR} of the published one. **In part**: it brings the number closer, but not to within {FAR}, and not beyond the
published one. Only one is named: the first that explains the difference, or else the one that comes nearest. Where ours
over the shared seeds is another number, it is given too. So each number has its own recipe, the best of up to
{{choices}} recipes and checkpoints. What a single recipe does to all the numbers is in the table after this one.
**Indicated**: on a cell of the task, a factor of the screen moves the mixer towards the published mean by more than
{FAR}, and by more than {ERRORS} times its standard error. If it moves the mixer away from the mean by as much on
another cell of the task, that is listed too. Of our learning rates, only the paper's three count.

{{false_alarms}}

{{mirrored}}
"""
UNEXPLAINED = "Unexplained."


@dataclass(frozen=True)
class Recipe:
    """A recipe or a checkpoint: what differs from the default by mixer, and its scores."""

    label: str
    changes: Mapping[str, str]
    scores: Scores


@dataclass(frozen=True)
class Changed:
    """A number without and with a recipe, where the default stands in for settings that the recipe has not run."""

    without: float  # over the same seeds
    mean: float
    run: int  # settings
    settings: int


@dataclass(frozen=True)
class Effect:
    """What leaving the default level of a factor does to a mixer on a cell: the main effect and its standard error."""

    what: str
    mixer: str
    task: str
    setting: str
    size: float
    error: float

    def counts(self, errors: int = ERRORS) -> bool:
        return abs(self.size) > max(FAR, errors * self.error)


def recipes_of(told: Mapping, rates: Collection[float]) -> list[Recipe]:
    """The recipes of experiments.json, each seed at the best of these learning rates, if it has them all."""
    made = []
    for (column, checkpoint), recipe in product(CHECKPOINTS.items(), told["recipes"]):
        changes = {mixer: ", ".join(filter(None, (what, checkpoint))) for mixer, what in recipe["changes"].items()}
        if not any(changes.values()):
            continue  # ours
        rows = pd.concat([pd.read_csv(RESULTS / name, low_memory=False) for name in recipe["rows"]])
        rows = rows[(rows["status"] == "finished") & rows["lr"].isin(rates)]
        if "names" in recipe:
            rows = rows[rows["recipe"] == rows["mixer"].map(recipe["names"])]
        of_seed = rows.groupby(["mixer", "task", "setting", "seed"])
        whole = of_seed["lr"].nunique() == len(rates)
        scores = defaultdict[Cell, dict[int, float]](dict)
        for (mixer, task, setting, seed), score in of_seed[column].max()[whole].items():
            scores[mixer, task, setting][seed] = score
        label = f"{recipe['label']}, last epoch" if checkpoint else recipe["label"]
        made.append(Recipe(label, changes, dict(scores)))
    return made


def effects_of(told: Mapping) -> tuple[list[Effect], list[Effect]]:
    """Those of the factors that a mixer has on a task, and those of factors that it lacks, which should be zero."""
    own, phantoms = [], []
    table = pd.read_csv(RESULTS / told["effects"]).dropna(subset="se")
    for (_, row), (name, factor) in product(table.iterrows(), told["factors"].items()):
        what, applies = factor["changes"].get(row["mixer"]), row["task"] in factor.get("tasks", [row["task"]])
        size = row[f"effect_{name}"] * (-1 if row["mixer"] in factor.get("upper", []) else 1)
        effect = Effect(what or name, row["mixer"], row["task"], row["setting"], size, row["se"])
        if what and applies:
            own.append(effect)
        elif row["mixer"] not in factor.get("confounded", []):
            phantoms.append(effect)
    return own, phantoms


def false_alarms(phantoms: Collection[Effect]) -> str:
    """How often the rule for effects takes one that should be zero."""
    flagged = Counter(effect.mixer for effect in phantoms if effect.counts())
    of = Counter(effect.mixer for effect in phantoms)
    by_mixer = ", ".join(f"{number} of {of[mixer]} for {mixer}" for mixer, number in flagged.items())
    text = "A factor that a mixer does not have should have no effect. The rule for effects flags"
    text += f" {flagged.total()} of {len(phantoms)} of these" + (f" ({by_mixer})" if flagged else "")
    return text + f"; with two standard errors it would flag {sum(effect.counts(2) for effect in phantoms)}."


def reason(pair: Pair, ours: Scores, recipes: Iterable[Recipe], effects: Iterable[Effect]) -> str:
    """Why this number, which is complete, is off."""
    assert pair.ours is not None
    task, _, setting = pair.name.partition(" ")
    gap = pair.ours - pair.published
    tried = []
    for recipe in recipes:
        changed = with_recipe(pair, ours, recipe)
        if changed is None or not is_far(changed.without - pair.published):
            continue
        before, after = changed.without - pair.published, changed.mean - pair.published
        closed = 1 - abs(after) / abs(before)
        if closed >= PART and (not is_far(after) or before * after > 0):
            tried.append((abs(after), closed, changed, recipe))
    found = []
    if tried:
        left, closed, changed, recipe = min(tried, key=lambda one: max(one[0], FAR))
        verdict = f"In part ({closed:.0%})" if is_far(left) else "Explained"
        score = f"{changed.mean:.3f}"
        if f"{changed.without:.3f}" != f"{pair.ours:.3f}":
            score += f" instead of {changed.without:.3f}"
        extent = "" if setting else f" ({changed.run} of {changed.settings} settings run)"
        found.append(f"{verdict}: {score} with {recipe.changes[pair.mixer]}{extent}.")
    clear = [one for one in effects if (one.mixer, one.task) == (pair.mixer, task) and one.counts()]
    named = {one.what for one in clear if one.size * gap < 0}
    shown = [
        f"{one.what} {one.size:+.2f} ({one.setting}{', away' if one.size * gap > 0 else ''})"
        for one in sorted(clear, key=lambda one: -abs(one.size))
        if one.what in named
    ]
    if shown:
        found.append(f"Indicated: {', '.join(shown)}.")
    return " ".join(found) or UNEXPLAINED


def verdicts(reasons: Iterable[str]) -> tuple[int, int, int]:
    """How many are explained, in part or indicated, and unexplained."""
    reasons = list(reasons)
    explained, unexplained = sum("Explained" in text for text in reasons), reasons.count(UNEXPLAINED)
    return explained, len(reasons) - explained - unexplained, unexplained


def mirrored(pairs: Iterable[Pair], ours: Scores, recipes: Collection[Recipe], effects: Collection[Effect]) -> str:
    """How often the rules explain numbers as far from ours in the other direction, where no paper has any."""
    both = [(pair, replace(pair, published=2 * pair.ours - pair.published)) for pair in pairs if pair.ours is not None]
    both = [(pair, image) for pair, image in both if 0 <= image.published <= 1]
    own, images = (verdicts(reason(one[side], ours, recipes, effects) for one in both) for side in (0, 1))
    return (
        "A recipe chosen for each number explains some by chance. To see how many, the rules are applied to the mirror"
        " image of each number: as far from ours, in the other direction."
        f" For {counted(len(both), 'number')} it is a possible accuracy. Of these,"
        f" {own[0]} are explained and {own[1]} in part or indicated; of their mirror images, {images[0]} and"
        f" {images[1]}."
    )


def with_recipe(pair: Pair, ours: Scores, recipe: Recipe) -> Changed | None:
    """The number with this recipe; None if no setting of it was run with a seed that ours has too."""
    task, _, setting = pair.name.partition(" ")
    without, means, run = [], [], 0
    for cell, own in ours.items():
        if cell[:2] != (pair.mixer, task) or setting not in ("", cell[2]):
            continue
        its = recipe.scores.get(cell, {})
        both = own.keys() & its.keys()
        run += bool(both)
        without.append(fmean(own[seed] for seed in both or own))
        means.append(fmean(its[seed] for seed in both) if both else without[-1])
    if pair.mixer not in recipe.changes or not run:
        return None
    return Changed(fmean(without), fmean(means), run, len(means))


def alone(pairs: Iterable[Pair], ours: Scores, recipe: Recipe) -> tuple[int, int, int, int]:
    """The numbers that a recipe has runs of, those off without it, and those that it alone brings in and puts out."""
    before, after = [], []
    for pair in pairs:
        if pair.ours is not None and (changed := with_recipe(pair, ours, recipe)) is not None:
            before.append(is_far(changed.without - pair.published))
            after.append(is_far(changed.mean - pair.published))
    both = list(zip(before, after, strict=True))
    return len(both), sum(before), both.count((True, False)), both.count((False, True))


def section(source: str | Path) -> str:
    """The section for these rows, in Markdown."""
    told, published, frame = json.loads(EXPERIMENTS.read_text()), read_published(PAPER), rows_of(source)
    recipes, (effects, phantoms) = recipes_of(told, published["rates"]), effects_of(told)
    ours, pairs = scores_by_seed(frame, rates=published["rates"]), pairs_of(frame, published)
    complete = [pair for pair in pairs if pair.complete and pair.ours is not None]
    choices = max(sum(with_recipe(pair, ours, recipe) is not None for recipe in recipes) for pair in complete)
    off = [pair for pair in complete if pair.ours is not None and is_far(pair.ours - pair.published)]
    rules = RULES.format(
        total=len(pairs),
        choices=choices,
        false_alarms=false_alarms(phantoms),
        mirrored=mirrored(off, ours, recipes, effects),
    )
    lines = ["\n\n".join(fill(part, 120, break_on_hyphens=False) for part in rules.split("\n\n")), ""]
    lines += ["| number | ours | published | reason |", "|---|--:|--:|---|"]
    reasons = [reason(pair, ours, recipes, effects) for pair in off]
    lines += [
        f"| {pair.mixer} {pair.name} | {pair.ours:.3f} | {pair.published:.3f} | {why} |"
        for pair, why in zip(off, reasons, strict=True)
    ]
    explained, in_part, unexplained = verdicts(reasons)
    lines += [
        "",
        f"Off by more than {FAR}: {len(off)} of the {len(complete)} numbers that can be compared.",
        f"Explained {explained}, in part or indicated {in_part}, unexplained {unexplained}.",
        "",
        "What one recipe alone does, over the numbers that it has runs of, with ours in the other settings, and over",
        "the seeds that both have:",
        "",
    ]
    lines += ["| recipe | numbers | off with ours | brought to within 0.05 | newly off |", "|---|--:|--:|--:|--:|"]
    for recipe in recipes:
        lines.append(f"| {recipe.label} | {' | '.join(map(str, alone(complete, ours, recipe)))} |")
    return "\n".join([*lines, "", *targets(pairs)]) + "\n"


def targets(pairs: Iterable[Pair]) -> list[str]:
    """What the project aims at, and what these numbers reach."""
    means, bars = ([pair for pair in pairs if pair.of == of] for of in ("means", "settings"))
    number, rmse, spearman = distance(means)
    reached = "nothing to compare yet" if rmse is None else f"{rmse:.3f}"
    if spearman is not None:
        reached += f" and {spearman:.2f}"
    done = [pair for pair in bars if pair.complete and pair.ours is not None]
    near = sum(round(abs(pair.ours - pair.published), 12) <= BAR for pair in done if pair.ours is not None)
    counted = f"{near} of {len(bars)}"
    if left := len(bars) - len(done):
        counted = f"{near} of the {len(done)} comparable; at most {near + left} if all others were"
    return [
        "What this project aims at, and what these numbers reach:",
        "",
        "| target | reached |",
        "|---|---|",
        f"| RMSE at most {RMSE:.2f} and Spearman at least {SPEARMAN:.2f} over the {len(means)} means |"
        f" {reached} ({number} comparable) |",
        f"| at least {BARS} of the {len(bars)} bars of the challenge within {BAR} | {counted} |",
    ]


def with_section(text: str, made: str) -> str:
    """A README with the section replaced; ValueError if it has no place for one."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(
            f"{README} has no lines {BEGIN.strip()!r} and {END.strip()!r}: put them where the section goes"
        )
    return before + BEGIN + "\n" + made + "\n" + END + after


def update(source: str | Path) -> None:
    """Writes the section for these rows into results/README.md."""
    README.write_text(with_section(README.read_text(), section(source)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    update(parser.parse_args().source)


if __name__ == "__main__":
    main()
