"""Writes the list of runs of one part of the work that is left for a GPU, in the order to run them.

    python results/plan.py screen OUT.csv        sixteen recipes on cheap cells, two seeds
    python results/plan.py finalists OUT.csv     five recipes on the settings up to length 256
    python results/plan.py challenge OUT.csv     the readings of its labels, two or three seeds
    python results/plan.py recipes OUT.csv       other recipes on the challenge, where ours is far from the paper
    python results/plan.py w_r OUT.csv           Parallax's W_R at zero and random, which the screen could not tell
    python results/plan.py steps OUT.csv         how large Muon's step is for a matrix: 15 cells; more for mamba
    python results/plan.py table OUT.csv         the 330 cells: each once, then two more seeds
    python results/plan.py adamw OUT.csv         attention and Parallax by AdamW: baselines, challenge, a lower rate
    python results/plan.py wider OUT.csv ROWS    the rates that unsolved cells of ROWS want, alike for all mixers

What the committed rows have is left out, except of `w_r`. Needs the repository root on PYTHONPATH;
`results/train.py` trains the list. A line holds `stage`, `unit` (runs that share what is compiled), `recipe`, `mixer`,
`task`, `setting`, `overrides` (the arguments of run.py) and `seconds`: how long the run takes in one of PER_GPU
processes on an H200, by the wall times of the runs that were made so far. It also prints the GPU minutes of each stage.
"""

import argparse
import csv
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pandas as pd

import mixerlab
from mixerlab.config.values import checked
from mixerlab.records.edges import NEAR_PERFECT
from mixerlab.records.identity import run_id
from mixerlab.results.costs import DEFAULT, Costs, charged, lengths
from mixerlab.results.screen import design
from mixerlab.sweeps.tables.collect import best_per_cell
from mixerlab.sweeps.tables.sources import rows_of

RESULTS = Path(__file__).parent
MIXERS = design.MIXERS
TASKS = ("mem", "fcr", "icr", "ncr", "cmp", "sc")  # the cheapest first
PER_GPU = 4  # processes, at most
LONG = 256  # tokens; from here on a run has one seed
MOST_TOKENS = 3072  # of a run's rates side by side, each with its length
ABOVE_CHANCE = 0.02  # a mixer between it and NEAR_PERFECT tells something of a setting

DEFAULT_RATES = ("5e-3", "1e-3", "5e-4")  # conf/optimizer/muon.yaml
SLOW_RATES = ("1.5e-3", "3e-4", "1.5e-4")  # design.MATRIX_RATE times these
ADAMW_RATES = ("3e-4", "1e-3", "3e-3")
LOW_ADAMW_RATES = ("1e-4",)
HIGH_RATES = (1e-2, 2e-2)  # where most cells below NEAR_PERFECT are best; the default stops below

# Readings of the challenge's labels (conf/task): for icr the first number is the pairs, for ncr the vocabulary
# (results/challenge/README.md says why). The other reading of each is run too.
RECALL, COPYING = ("icr_challenge", "ncr_vocab_challenge"), "sc_challenge"
CHALLENGE = (*RECALL, COPYING)
OTHER_NCR, OTHER_ICR, OTHER_SC = "ncr_challenge", "icr_vocab_challenge", "sc_vocab16_challenge"

Replica = tuple[str, str, str, int, float]  # mixer, task, setting, seed and learning rate
COLUMNS = ("stage", "unit", "recipe", "mixer", "task", "setting", "overrides", "seconds")


@dataclass(frozen=True)
class Run:
    stage: str
    recipe: str
    mixer: str
    task: str
    setting: str
    overrides: str


def longest_first(tasks: Sequence[str]) -> list[tuple[str, str]]:
    """Task and setting, by length: of a portion, short runs fill the end."""
    every = [(task, setting) for task in tasks for setting in lengths(task)]
    return sorted(every, key=lambda cell: -lengths(cell[0])[cell[1]])


def runs_of(
    stage: str,
    mixer: str,
    task: str,
    setting: str,
    seeds: Sequence[int],
    rates: Sequence[str] = (),
    extra: Sequence[str] = (),
    recipe: str = DEFAULT,
    made: Collection[Replica] = (),
) -> Iterator[Run]:
    """The runs of one cell; no `rates`: the default's. One run if sequences are short, several if they are long.

    Long replicas gain nothing from each other's company (`costs.BUSY`), and a run should end within a portion. The
    replicas of `made` are left out.
    """
    length = lengths(task)[setting]
    most = max(1, MOST_TOKENS // length)  # of rates
    lacking = [
        tuple(rate for rate in rates or DEFAULT_RATES if (mixer, task, setting, seed, float(rate)) not in made)
        for seed in seeds
    ]
    for of_seeds in dict.fromkeys(lacking):  # the rates that several seeds lack
        group = [seed for seed, of_seed in zip(seeds, lacking, strict=True) if of_seed == of_seeds]
        seed_groups = [[seed] for seed in group] if length >= LONG else [group]
        rate_groups = [of_seeds[i : i + most] for i in range(0, len(of_seeds), most)]
        for rate_group, seed_group in product(rate_groups, seed_groups):
            given = [f"mixer={mixer}", f"task={task}", f"task.setting={setting}", f"seed={_listed(seed_group)}"]
            given += [*_recipe(recipe, mixer), *extra]
            if rates or rate_group != DEFAULT_RATES:
                given.append(f"optimizer.lr={_listed(rate_group)}")
            yield Run(stage, recipe, mixer, task, setting, " ".join(given))


def _recipe(name: str, mixer: str) -> list[str]:
    return [] if name == DEFAULT else design.RECIPES[name][mixer]


def _listed(values: Sequence) -> str:
    return str(values[0]) if len(values) == 1 else f"[{','.join(map(str, values))}]"


def screen() -> Iterator[Run]:
    done = finished_in("screen/rows.csv")
    for run in design.screen():
        if (run["recipe"], run["mixer"], run["task"], run["setting"]) not in done:
            yield Run(run["stage"], run["recipe"], run["mixer"], run["task"], run["setting"], run["overrides"])


def finished_in(rows: str) -> set[tuple[str, str, str, str]]:
    """Recipe, mixer, task and setting of the runs that ended."""
    return set(_finished(rows)[["recipe", "mixer", "task", "setting"]].itertuples(index=False, name=None))


def replicas_in(rows: str, recipe: str | None = None) -> set[Replica]:
    """The replicas that ended; of a file with several recipes, of one."""
    done = _finished(rows)
    if recipe is not None:
        done = done[done["recipe"] == recipe]
    return set(done[["mixer", "task", "setting", "seed", "lr"]].itertuples(index=False, name=None))


def _finished(rows: str) -> pd.DataFrame:
    done = pd.read_csv(RESULTS / rows, low_memory=False)
    return done[done["status"] == "finished"]


def finalists() -> Iterator[Run]:
    """One seed, the default rates, without what results/screen/finalists.tar.xz holds.

    The default with PyTorch's initial values comes first: copying on the challenge has the paper's order with them. It
    is the draft's recipe for mamba and mesa, whose rows are in results/rounding, and on `cmp` it is the default, since
    the auto-encoder has initial values of its own. mad-lab's attention comes next: with its 16 heads, recall comes down
    towards the paper's.
    """
    done = finished_in("screen/finalist_rows.csv")
    language = tuple(task for task in TASKS if task != "cmp")
    for name, mixers, tasks in (
        ("PyTorch's init", ("attn", "parallax", "gdn"), language),
        ("mad-lab's attention", ("attn",), language),
        ("2x64", MIXERS, TASKS),
        ("plain", ("attn", "parallax", "mamba"), TASKS),
        ("4x32", design.WITH_HEADS, TASKS),
    ):
        for task, mixer in product(tasks, mixers):
            for setting, length in lengths(task).items():
                if length <= 256 and (name, mixer, task, setting) not in done:
                    yield from runs_of(f"finalist {name}", mixer, task, setting, [0], recipe=name)


def challenge() -> Iterator[Run]:
    """Attention and Parallax on every reading, the others where it could decide.

    Each stage has its first seed first, and of a seed the longest runs first: short ones fill the end of a portion.
    Of ncr only mamba has a number in the paper that could part the readings; of sc all mixers have, and one seed was
    enough: it is the paper's own bars that speak against the other reading. With AdamW attention learned recall at
    2,048 tokens with a third seed: Muon gets that seed too.
    """
    made = replicas_in("table/rows.csv")
    for stage, mixers, tasks, seeds in (
        ("attn and parallax", ("attn", "parallax"), (*CHALLENGE, OTHER_NCR), (0, 1)),
        ("the recurrent mixers", ("gdn", "mamba", "mesa"), CHALLENGE, (0, 1)),
        ("copying, vocabulary of 16", MIXERS, (OTHER_SC,), (0,)),
        ("mamba, pairs of ncr", ("mamba",), (OTHER_NCR,), (0, 1)),
        ("vocabulary of icr", ("attn", "parallax"), (OTHER_ICR,), (0, 1)),
        ("attn and parallax, third seed", ("attn", "parallax"), CHALLENGE, (2,)),
    ):
        for seed, (task, setting), mixer in product(seeds, longest_first(tasks), mixers):
            yield from runs_of(stage, mixer, task, setting, [seed], made=made)


def recipes() -> Iterator[Run]:
    """Recipes that could explain bars far from the paper's, without what challenge/recipe_rows.csv holds.

    The paper's mamba hardly recalls, and ours does: with the bias of its time steps at zero (`2x64`) it recalled less
    in the screen, and mad-lab's has four states. The paper's attention copies less than ours: `plain` has no norms on q
    and k, and mad-lab's has 16 heads of 8. The paper's recurrent mixers copy more than ours: with PyTorch's initial
    values mamba's mean of `sc` came nearer to it. There Parallax led attention with the first seed, as in the paper:
    these two got a second. On recall, attention did not learn 1,024 tokens with them and the first seed, which it does
    in the paper and with the default; with the second it did in half of its replicas. Muon's spectral scale lowered
    mamba's recall on cells of the table (`steps`).
    """
    for stage, recipe, mixers, tasks, seed in (
        ("mamba, dt bias at zero", "2x64", ("mamba",), CHALLENGE, 0),
        ("copying without norms", "plain", ("attn", "parallax"), (COPYING,), 0),
        ("copying, PyTorch's initial values", "PyTorch's init", MIXERS, (COPYING,), 0),
        ("the same, second seed", "PyTorch's init", ("attn", "parallax"), (COPYING,), 1),
        ("copying, mad-lab's attention", "mad-lab's attention", ("attn",), (COPYING,), 0),
        ("recall, PyTorch's initial values", "PyTorch's init", ("attn", "parallax", "mamba"), RECALL, 0),
        ("recall, second seed", "PyTorch's init", ("attn", "parallax"), RECALL, 1),
        ("mamba, four states", "4 states", ("mamba",), CHALLENGE, 0),
        ("mamba, spectral scale", "spectral scale", ("mamba",), CHALLENGE, 0),
    ):
        made = replicas_in("challenge/recipe_rows.csv", recipe)
        for (task, setting), mixer in product(longest_first(tasks), mixers):
            yield from runs_of(stage, mixer, task, setting, [seed], recipe=recipe, made=made)


def w_r() -> Iterator[Run]:
    for run in design.w_r():
        yield Run(run["stage"], run["recipe"], run["mixer"], run["task"], run["setting"], run["overrides"])


def steps() -> Iterator[Run]:
    """How large Muon's step is for a matrix, which the paper leaves open: on 15 cells, three mixers, one seed.

    The paper's equation has no scale by the matrix's shape, and its appendix names "spectral scaling"; ours is the
    square root of rows by columns, but at least 1. The paper's `cmp` lies between our rates 1e-3 and 5e-3, but its
    `mem` at 5e-3: smaller steps for the matrices only, with the embedding's as they are, could be what it has. On these
    cells the spectral scale moved mamba's recall towards the paper: mamba gets the other settings up to length 256.
    What results/screen/step_rows.csv holds is left out.
    """
    done = finished_in("screen/step_rows.csv")
    cells = [(task, setting) for task, settings in design.VARIANT_CELLS.items() for setting in settings]
    slow = f"matrices at {design.MATRIX_RATE:g}"
    for recipe, rates in (("spectral scale", ()), ("no update scale", ()), (slow, SLOW_RATES)):
        for mixer, (task, setting) in product(("attn", "gdn", "mamba"), cells):
            if (recipe, mixer, task, setting) not in done:
                yield from runs_of(f"step, {recipe}", mixer, task, setting, [0], rates, recipe=recipe)
    recipe = "spectral scale"
    for task, setting in longest_first(TASKS):
        other = (task, setting) not in cells and (recipe, "mamba", task, setting) not in done
        if other and lengths(task)[setting] <= LONG:
            yield from runs_of(f"mamba, {recipe}", "mamba", task, setting, [0], recipe=recipe)


def table() -> Iterator[Run]:
    """Every cell once at the default's rates; then two more seeds, first of the settings that tell mixers apart.

    These have the rates that their cell has with the first seed (`wider`). A setting tells mixers apart if one of them
    lies between ABOVE_CHANCE over chance and NEAR_PERFECT.
    """
    rows = rows_of(RESULTS / "table" / "rows.csv")
    made = replicas_in("table/rows.csv")
    rows = rows[rows["task"].isin(TASKS) & (rows["seed"] == 0)]
    tried = rows.groupby(["mixer", "task", "setting"])["lr"].unique()
    cells = best_per_cell(rows)
    tells = (cells["accuracy"] > cells["chance"] + ABOVE_CHANCE) & (cells["accuracy"] < NEAR_PERFECT)
    telling = set(cells[tells][["task", "setting"]].itertuples(index=False, name=None))
    cells_of_all = longest_first(TASKS)
    for (task, setting), mixer in product(cells_of_all, MIXERS):
        yield from runs_of("every cell", mixer, task, setting, [0], made=made)
    for stage, tell in (("cells that tell, two more seeds", True), ("the rest, two more seeds", False)):
        chosen = [cell for cell in cells_of_all if (cell in telling) == tell]
        for (task, setting), mixer in product(chosen, MIXERS):
            rates = [f"{rate:g}" for rate in sorted(tried[mixer, task, setting], reverse=True)]
            yield from runs_of(stage, mixer, task, setting, [1, 2], rates, made=made)


def adamw() -> Iterator[Run]:
    """The baselines; then the challenge, one seed after another; then a lower rate.

    Parallax learned recall mostly at the lowest of ADAMW_RATES, and with two seeds neither mixer learned it at 2,048
    tokens: at 1,024 and 2,048 tokens both get a lower one.
    """
    made = replicas_in("adamw/rows.csv")
    baselines, challenges = [(task, "baseline") for task in TASKS], longest_first(CHALLENGE)
    long_recall = [(task, setting) for task, setting in longest_first(RECALL) if lengths(task)[setting] >= 1024]
    parts = [("adamw baselines", baselines, [0, 1, 2], ADAMW_RATES)]
    parts += [("adamw challenge", challenges, [seed], ADAMW_RATES) for seed in (0, 1, 2)]
    parts += [("adamw recall at a lower rate", long_recall, [seed], LOW_ADAMW_RATES) for seed in (0, 1)]
    for stage, cells, seeds, rates in parts:
        for (task, setting), mixer in product(cells, ("attn", "parallax")):
            yield from runs_of(stage, mixer, task, setting, seeds, rates, ["optimizer=adamw"], made=made)


def wider(rows: Path) -> Iterator[Run]:
    """The learning rates that cells of `rows` still want, without the readings of the challenge that we did not choose.

    Cells below NEAR_PERFECT get, for all mixers of a setting alike, HIGH_RATES, what another of them has tried, and,
    where one is best at the edge of its grid (`sweeps.edges`), the rate beyond it by a factor of two. Any cell gets the
    rates that it lacks (`sweeps.grids`).

    Raises:
        ValueError: rows that were not trained with Muon and the default recipe, as these runs are.
    """
    frame = rows_of(rows)
    frame = frame[frame["task"].isin((*TASKS, *CHALLENGE))]
    if others := set(frame["optimizer"]) - {"muon"}:
        raise ValueError(f"{rows} has runs by {', '.join(sorted(others))}: give rows of Muon only")
    for _, of_mixer in frame.groupby("mixer"):
        _require_default(rows, of_mixer[of_mixer["run_id"] == of_mixer["run_id"].iloc[0]])
    cells = best_per_cell(frame)
    cells = cells[cells["accuracy"].notna()]
    tried = {key: set(rates) for key, rates in frame.groupby(["mixer", "task", "setting"])["lr"]}
    of_setting = defaultdict[tuple[str, str], set[float]](lambda: set(HIGH_RATES))
    for cell in cells[cells["accuracy"] < NEAR_PERFECT].itertuples():
        own = tried[cell.mixer, cell.task, cell.setting]
        of_setting[cell.task, cell.setting] |= own
        if cell.edge:
            of_setting[cell.task, cell.setting].add(2 * cell.lr if cell.lr == max(own) else cell.lr / 2)
    for cell in sorted(cells.itertuples(), key=lambda cell: -lengths(cell.task)[cell.setting]):
        wanted = set(cell.lacking)
        if cell.accuracy < NEAR_PERFECT:
            wanted |= of_setting[cell.task, cell.setting] - tried[cell.mixer, cell.task, cell.setting]
        if wanted:
            rates = [f"{rate:g}" for rate in sorted(wanted)]
            yield from runs_of("wider", cell.mixer, cell.task, cell.setting, sorted(cell.by_seed), rates)


def _require_default(rows: Path, run: pd.DataFrame) -> None:
    """ValueError unless conf/ describes this run, a row for each of its replicas."""
    first = run.iloc[0]
    given = [f"{key}={first[key]}" for key in ("mixer", "task")] + [f"task.setting={first['setting']}"]
    for key, name in (("lr", "optimizer.lr"), ("seed", "seed")):
        given.append(f"{name}={_listed(run[key].unique())}")
    if run_id(checked(mixerlab.compose(*given))[1]) != first["run_id"]:
        raise ValueError(f"{rows}: run {first['run_id']} of {first['mixer']} has another recipe than conf/ now")


LISTS: dict[str, Callable[[], Iterator[Run]]] = {
    "screen": screen,
    "finalists": finalists,
    "challenge": challenge,
    "recipes": recipes,
    "w_r": w_r,
    "steps": steps,
    "table": table,
    "adamw": adamw,
}


def replicas_of(overrides: str) -> int:
    given = dict(text.split("=", 1) for text in overrides.split())
    rates = given["optimizer.lr"].strip("[]").split(",") if "optimizer.lr" in given else DEFAULT_RATES
    return len(rates) * len(given.get("seed", "0").split(","))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=[*LISTS, "wider"])
    parser.add_argument("out", type=Path)
    parser.add_argument("rows", type=Path, nargs="?", help="for `wider`: of runs with the recipe of the configs")
    given = parser.parse_args()
    if (given.rows is None) == (given.which == "wider"):
        parser.error(f"{given.which} takes {'the rows of a table' if given.which == 'wider' else 'no rows'}")
    runs = list(wider(given.rows) if given.rows else LISTS[given.which]())  # OUT stays as it is if this fails
    costs, minutes, number = Costs(), Counter[str](), Counter[str]()
    with given.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for run in runs:
            cell = (run.mixer, run.task, run.setting)
            replicas = charged(run.task, run.setting, replicas_of(run.overrides))
            gpu_seconds = costs.of_replica(run.recipe, *cell) * replicas
            minutes[run.stage] += gpu_seconds / 60
            number[run.stage] += 1
            unit = f"{run.stage} {run.recipe} {run.mixer} {run.task} {lengths(run.task)[run.setting]}"
            writer.writerow(vars(run) | {"unit": unit, "seconds": round(gpu_seconds * PER_GPU, 1)})
    for stage in number:
        print(f"{stage}: {number[stage]} runs, {minutes[stage]:.0f} GPU minutes")


if __name__ == "__main__":
    main()
