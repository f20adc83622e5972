"""What the screen of the paper's open choices runs, and which recipe each run belongs to.

    python results/screen/design.py screen OUT.csv       writes the list, a run a line, in the order to run them
    python results/screen/design.py finalists OUT.csv    what was run of the finalists, and the challenge
    python results/screen/design.py variants OUT.csv     the finalist 2x64 with one choice changed, on 15 cells

Needs the repository root on PYTHONPATH. A line holds `stage`, `unit` (runs that one process makes in a row), `recipe`,
the eight factors as -1 or 1, `mixer`, `task`, `setting` and `overrides`: the arguments of run.py, separated by spaces.

The screen is a 2^(8-4) fractional factorial of resolution IV: sixteen recipes, in which no main effect is aliased with
another or with an interaction of two. A, B, C, D make the full factorial; E = BCD, F = ACD, G = ABC, H = ABD.
"""

import csv
import sys
from itertools import product

MIXERS = ("attn", "parallax", "gdn", "mamba", "mesa")
FACTORS = {
    "A": "linear weights: PyTorch's default / N(0, 0.02)",
    "B": "heads: 2 of 64 / 16 of 8 (mamba: d_state 16 / 4)",
    "C": "Nesterov: no / yes",
    "D": "A_log and convolutions: Adam / Muon (attn, parallax: biases no / yes)",
    "E": "parallax: W_R zero / random; gdn: values x1 / x2; mamba: dt bias kept / zeroed",
    "F": "norms on q, k (attn) and rho (parallax): no / yes",
    "G": "auto-encoder: what a mixer started on purpose is kept / drawn anew (parallax, mamba)",
    "H": "matrices: float32 / bfloat16",
}
# What a factor's upper level sets, by mixer; "*" for all. A mixer that is not named does not have the factor.
UPPER = {
    "A": {"*": ["model.linear_std=0.02"]},
    "B": {"mamba": ["mixer.d_state=4"], "*": ["mixer.num_heads=16"]},
    "C": {"*": ["optimizer.nesterov=true"]},
    "D": {"attn": ["mixer.bias=true"], "parallax": ["mixer.bias=true"], "*": ["optimizer.filters=muon"]},
    "E": {"parallax": ["mixer.zero_init_rho=false"], "gdn": ["mixer.expand_v=2"], "mamba": ["mixer.zero_dt_bias=true"]},
    "F": {"attn": ["mixer.qk_norm=true"], "parallax": ["mixer.qkr_norm=true"]},
    "G": {"*": ["model.autoencoder_redraw_all=true"]},
    "H": {"*": ["optimizer.bf16_matrices=true"]},
}
# What its lower level sets, where that is no longer the default (conf/): the screen was designed before.
LOWER = {
    "A": {"*": ["model.linear_std=null"]},
    "E": {"gdn": ["mixer.expand_v=1"]},
    "F": {"attn": ["mixer.qk_norm=false"], "parallax": ["mixer.qkr_norm=false"]},
}
# Cheap cells that discriminate first, for all recipes: of two sizes of a task that in which more mixers were away from
# 0 and 1 in results/rounding. Then one with 12,800 examples, and what is left.
STAGES = {
    "first": (
        ("mem", "vocab_size-1024"),
        ("mem", "vocab_size-4096"),
        ("icr", "num_train_examples-800"),
        ("fcr", "num_train_examples-3200"),
        ("ncr", "num_train_examples-1600"),
        ("sc", "num_train_examples-800"),
        ("cmp", "num_train_examples-3200"),
    ),
    "fcr": (("fcr", "baseline"),),
    "second": (
        ("icr", "num_train_examples-1600"),
        ("ncr", "num_train_examples-800"),
        ("sc", "num_train_examples-1600"),
    ),
    "cmp": (("cmp", "vocab_size-64"),),
}
SEEDS = {"first": "[0,1]", "fcr": "0", "second": "[0,1]", "cmp": "0"}
COLUMNS = ("stage", "unit", "recipe", *FACTORS, "mixer", "task", "setting", "overrides")


def recipes() -> list[dict[str, int]]:
    """The sixteen recipes, levels -1 and 1; the first eight are a 2^(8-5), should there be time for no more."""
    made = []
    for d, c, b, a in product((-1, 1), repeat=4):
        made.append({"A": a, "B": b, "C": c, "D": d, "E": b * c * d, "F": a * c * d, "G": a * b * c, "H": a * b * d})
    # ABCD = 1 first, where E = A, F = B, G = D and H = C: the second half tells these apart. Each half is balanced.
    return sorted(made, key=lambda levels: -levels["A"] * levels["B"] * levels["C"] * levels["D"])


def name_of(levels: dict[str, int]) -> str:
    """The factors at their upper level, `-` where none is."""
    return "".join(factor for factor, level in levels.items() if level > 0) or "-"


def overrides_of(levels: dict[str, int], mixer: str) -> list[str]:
    """What a recipe sets for a mixer."""
    given = []
    for factor, level in levels.items():
        sets = (UPPER if level > 0 else LOWER).get(factor, {})
        given += sets.get(mixer, sets.get("*", []))
    return given


def screen() -> list[dict]:
    runs = []
    for stage, cells in STAGES.items():
        for levels in recipes():
            for mixer in MIXERS:
                for task, setting in cells:
                    label = {"stage": stage, "recipe": name_of(levels), **levels, "mixer": mixer}
                    unit = f"{stage} {label['recipe']} {mixer}"
                    given = [f"mixer={mixer}", f"task={task}", f"task.setting={setting}", f"seed={SEEDS[stage]}"]
                    text = " ".join([*given, *overrides_of(levels, mixer)])
                    runs.append(label | {"unit": unit, "task": task, "setting": setting, "overrides": text})
    return runs


# The finalists, chosen after the screen; `results/screen/README.md` says by what.
NORMED = {
    "attn": ["model.linear_std=0.02", "mixer.qk_norm=true"],
    "parallax": ["model.linear_std=0.02", "mixer.qkr_norm=true"],
    "gdn": ["model.linear_std=0.02", "mixer.expand_v=2"],
    "mamba": ["model.linear_std=0.02", "mixer.zero_dt_bias=true"],
    "mesa": ["model.linear_std=0.02"],
}
PLAIN = {  # without norms, and mamba's dt bias kept
    "attn": ["model.linear_std=0.02", "mixer.qk_norm=false"],
    "parallax": ["model.linear_std=0.02", "mixer.qkr_norm=false"],
    "gdn": NORMED["gdn"],
    "mamba": ["model.linear_std=0.02"],
    "mesa": NORMED["mesa"],
}


def _with(key: str, mixers: tuple[str, ...] = MIXERS) -> dict[str, list[str]]:
    """2x64 with one more key for these mixers."""
    return {mixer: [*given, key] if mixer in mixers else given for mixer, given in NORMED.items()}


MATRIX_RATE = 0.3  # of the default's rates, in the recipe with smaller steps for matrices only
WITH_HEADS = ("attn", "parallax", "gdn", "mesa")
# What a recipe sets for a mixer.
RECIPES: dict[str, dict[str, list[str]]] = {
    "2x64": NORMED,
    "plain": PLAIN,
    "4x32": _with("mixer.num_heads=4", WITH_HEADS),
    "1x128": _with("mixer.num_heads=1", WITH_HEADS),
    "2x64, all decayed": _with("optimizer.decayed=all"),
    "2x64, head by Muon": _with("optimizer.head=muon"),
    "PyTorch's init": {mixer: ["model.linear_std=null"] for mixer in MIXERS},  # the rest as in conf/
    "mad-lab's attention": {
        "attn": ["model.linear_std=null", "mixer.qk_norm=false", "mixer.num_heads=16", "mixer.bias=true"]
    },
    "4 states": {"mamba": ["mixer.d_state=4"]},  # as in mad-lab
    "no update scale": {mixer: ["optimizer.update_scale=none"] for mixer in MIXERS},  # the paper's equation
    "spectral scale": {mixer: ["optimizer.update_scale=spectral"] for mixer in MIXERS},  # the paper's words
    # All rates are that much lower, and these scales higher, so that the embedding and the norms keep theirs.
    f"matrices at {MATRIX_RATE:g}": {
        mixer: ["optimizer.table_lr_scale=1", "optimizer.gain_lr_scale=0.05"] for mixer in MIXERS
    },
}
# Recipes that differ from 2x64 in one choice, and their mixers. Mesa with one head of 128 has no kernel. A choice of
# the optimizer acts on all mixers: three show it. 2x64 itself is for the mixers whose norms changed after its runs.
VARIANTS = {
    "2x64": ("attn", "parallax"),
    "4x32": ("attn", "parallax", "gdn", "mesa"),
    "2x64, all decayed": ("attn", "gdn", "mamba"),
    "2x64, head by Muon": ("attn", "gdn", "mamba"),
    "1x128": ("attn", "parallax", "gdn"),
}
# Cells on which the recipes or the mixers of the screen and of the finalists differ.
VARIANT_CELLS = {
    "mem": ("vocab_size-1024", "vocab_size-4096"),
    "fcr": ("baseline", "num_train_examples-6400", "seq_len-256"),
    "icr": ("num_train_examples-800", "num_train_examples-1600"),
    "ncr": ("num_train_examples-800", "num_train_examples-1600"),
    "cmp": ("num_train_examples-3200", "vocab_size-64"),
    "sc": ("num_train_examples-800", "num_train_examples-1600", "num_tokens_to_copy-64", "num_tokens_to_copy-96"),
}
FEWER = tuple(f"num_train_examples-{number}" for number in (800, 1600, 3200, 6400))
VOCABULARIES = ("vocab_size-32", "vocab_size-64", "vocab_size-128")
SETTINGS = {  # those of length 128 and less; of sc (256) those in which the draft tells mixers apart
    "mem": ("baseline", *(f"vocab_size-{size}" for size in (512, 1024, 2048, 4096, 8192))),
    "fcr": ("baseline", *VOCABULARIES, *FEWER),
    "icr": ("baseline", *VOCABULARIES, *FEWER),
    "ncr": (
        *("baseline", "frac_noise-0.4", "frac_noise-0.6", "frac_noise-0.8"),
        *FEWER,
        *("vocab_size-48", "vocab_size-80", "vocab_size-144"),
    ),
    "cmp": ("baseline", *VOCABULARIES, "seq_len-64", "seq_len-128", *FEWER),
    "sc": ("baseline", "num_tokens_to_copy-64", "num_tokens_to_copy-96", *FEWER),
}


def finalists() -> list[dict]:
    """The challenge of attention and Parallax under the first finalist, that finalist, and what differs from it."""
    runs = []

    def add(recipe: str, mixer: str, task: str, settings: tuple[str, ...], extra: list[str], unit: str = "") -> None:
        for setting in settings:
            given = [f"mixer={mixer}", f"task={task}", f"task.setting={setting}", *NORMED[mixer], *extra]
            label = {"stage": "finalists", "recipe": recipe, "mixer": mixer, "task": task, "setting": setting}
            runs.append(label | {"unit": f"{recipe} {mixer} {task} {unit}", "overrides": " ".join(given)})

    for recipe, task, levels, extra in (
        ("2x64", "icr_challenge", ("512-1024", "256-512"), []),
        ("2x64", "ncr_challenge", ("256-1024", "128-512"), []),
        ("2x64, noise 0.2", "ncr_challenge", ("256-1024", "128-512"), ["task.frac_noise=0.2"]),
    ):
        for mixer in ("attn", "parallax"):
            for level in levels:
                add(recipe, mixer, task, (level,), extra, level)
    for task in ("fcr", "mem", "sc", "icr", "ncr", "cmp"):
        for mixer in MIXERS:
            add("2x64", mixer, task, SETTINGS[task], [])
    for mixer in MIXERS:
        add("2x64, decoder by Adam", mixer, "cmp", ("baseline", "vocab_size-64", FEWER[2]), ["optimizer.decoder=adam"])
    for task in ("fcr", "mem", "icr", "ncr"):
        for mixer in ("attn", "parallax", "gdn", "mesa"):
            add("4x32", mixer, task, SETTINGS[task], ["mixer.num_heads=4"])
    return runs


def variants() -> list[dict]:
    """One seed, the default rates.

    To train in a results folder of its own: finalists of the same `run_id` had other norms of heads.
    """
    runs = []
    for (recipe, mixers), (task, settings) in product(VARIANTS.items(), VARIANT_CELLS.items()):
        for mixer, setting in product(mixers, settings):
            label = {"stage": "variants", "unit": f"{recipe} {mixer} {task}", "recipe": recipe, "mixer": mixer}
            given = [f"mixer={mixer}", f"task={task}", f"task.setting={setting}", "seed=0", *RECIPES[recipe][mixer]]
            runs.append(label | {"task": task, "setting": setting, "overrides": " ".join(given)})
    return runs


def w_r() -> list[dict]:
    """All combinations of A, E and F for Parallax with two heads: in the screen E is the product of A, B and F."""
    runs = []
    for stage in ("first", "fcr"):
        for (task, setting), a, f, e in product(STAGES[stage], (1, -1), (1, -1), (1, -1)):
            levels = dict.fromkeys(FACTORS, -1) | {"A": a, "E": e, "F": f}
            given = ["mixer=parallax", f"task={task}", f"task.setting={setting}", f"seed={SEEDS[stage]}"]
            label = {"stage": "w_r", "unit": f"w_r {task} {setting} {f}", "recipe": name_of(levels), **levels}
            text = " ".join([*given, *overrides_of(levels, "parallax")])
            runs.append(label | {"mixer": "parallax", "task": task, "setting": setting, "overrides": text})
    return runs


def main() -> None:
    which, out = sys.argv[1:]
    with open(out, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows({"screen": screen, "finalists": finalists, "variants": variants}[which]())


if __name__ == "__main__":
    main()
