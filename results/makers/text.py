"""Language models of text."""

from itertools import product
from pathlib import Path

import pandas as pd
from makers.analysis import claims_of_paper
from makers.common import RECORDS, copy_files, mean_change, noted, write_in_page
from matplotlib.figure import Figure

from mixerlab.analyse import write as write_analysis
from mixerlab.records.names import in_order
from mixerlab.records.schema import Score
from mixerlab.sweeps.figures.curves import SEEDS, by_replica, draw_curves, show_epochs
from mixerlab.sweeps.figures.marks import line_handles
from mixerlab.sweeps.figures.sheet import Sheet, figure_style, save
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.tables.cells import at_best_rate
from mixerlab.sweeps.tables.collect import curves, rows_of
from mixerlab.sweeps.tables.columns import Column
from mixerlab.sweeps.tables.swept import as_yaml

MIXERS = ("attn", "parallax", "gdn", "kda", "mesa", "mamba", "attn+gdn")
OF_FAMILY = [("affine_linear", "linear"), ("affine_mesa", "mesa"), ("affine_linear", "value_average")]
OPTIMIZERS = {"muon": "Muon", "adamw": "AdamW"}
SEARCH_SEED = 3
CELL = ["mixer", "optimizer", "lr"]
BITS = "clean_bits_per_byte"
ENGLISH = "Bits per byte of test rows at the checkpoint of the lowest validation loss, the lower the better"
RATES_NOTE = """\
Bits per byte of validation rows at the end of the search for the learning rate, one seed. Bold: the lowest; †: at the
smallest or the largest rate that was tried."""
CHOSEN_NOTE = """\
The same at the end of training, mean over seeds. Bold: the rate of all other tables."""
DIFFERENCES_NOTE = """\
Differences, below 0 where the first is better: mean over the seeds that both have ± half of Student's 95% interval of
the differences by seed. In brackets how many seeds, if not three."""
CONTROLS_NOTE = f"""\
{ENGLISH}: one run less the
plain run of its mixer, optimizer and seed; with ±: mean over three seeds and half of Student's 95% interval.
`model.d_ff`: about as many parameters as Parallax (of attention) or as attention (of the others). Standard deviation
between seeds of the plain runs of attention and Parallax: {{}}; of the difference of two runs it is 1.4 times that.
Other mixers have two seeds."""
SCHEDULES_NOTE = """\
Lead of Parallax: bits per byte of attention less those of Parallax on test rows, after 80% of training, where WSD
begins to decay, and at the end. With ±: mean over three seeds and half of Student's 95% interval of the differences by
seed, which does not cover the choice of the schedule; the others have seed 0. `gamma` anneals the weight decay in the
decay phase."""
CONVERSION_NOTE = f"""\
{ENGLISH}. All runs go on
from one checkpoint: attention that Muon trained at {{:g}}, seed {{}}, the best on test ({{:.4f}}). Mean over three
seeds of going on ± half of Student's 95% interval (learning rate: the better on validation of two); of the differences
by seed. The ± does not cover the choice of the checkpoint."""
CLAIMS_NOTE = """\
Differences that the claim says to be above or below 0, or none: means over three seeds ± half of Student's 95%
interval, over layers if none is named; of eight layers the last one. The verdict is by the interval."""


def make(folder: Path, scratch: Path) -> None:
    """Language models that `study.py` trains, told by what only they have: the search its seed, plain ones several."""
    rows, metrics = rows_of(folder / RECORDS), curves(folder / RECORDS)
    searched, starts, begun = rows["seed"] == SEARCH_SEED, rows["model.start_from"], plain_runs(rows)
    plain = at_better_rate(begun)
    single = rows[~has_seeds(rows) & ~searched].merge(plain[CELL].drop_duplicates())
    scheduled = (single["schedule"] != "wsd") | (single["schedule.gamma"] > 0) | (single["schedule.warmup"] > 0)
    tables = {
        "rates": rates_table(rows[searched], RATES_NOTE) + "\n" + rates_table(begun, CHOSEN_NOTE),
        "differences": differences_table(plain),
        "controls": controls_table(single, plain),
        "schedules": schedules_table(plain, single[scheduled], metrics),
        "conversion": conversion_table(rows[starts.notna()], rows),
    }
    for name, table in tables.items():
        (folder / f"{name}.md").write_text(table)
    write_in_page(folder, "bits per byte", bits_lines(plain), 1)
    save(text_curves(plain, metrics), folder / "curves")
    inside = pd.read_csv(folder / "inside.csv.xz")
    inside = inside[inside["run_id"].isin(plain["run_id"])]
    write_analysis(inside, scratch)
    copy_files(scratch, folder, ["correction.png", "scores.png", "stable_ranks.md"])
    # The claims are of WSD after the 60 epochs of MAD; this is WSD at the end of training too.
    inside = inside.assign(study="optimizers", epochs=60, variant=inside["variant"] + ", wsd")
    (folder / "claims.md").write_text(claims_of_paper(inside, CLAIMS_NOTE))


def has_seeds(rows: pd.DataFrame) -> pd.Series:
    """Whether a row is of a run of several seeds."""
    return rows.groupby("run_id")["seed"].transform("nunique") > 1


def plain_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Those of several seeds from initial values."""
    return rows[has_seeds(rows) & (rows["seed"] != SEARCH_SEED) & rows["model.start_from"].isna()]


def at_better_rate(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each mixer and optimizer the rows at the rate that is better on validation, on the mean of its seeds."""
    return at_best_rate(rows, CELL[:2], "clean", Score("bits_per_byte", higher_is_better=False))


def rates_table(rows: pd.DataFrame, note: str) -> str:
    """Means over seeds by learning rate."""
    scores = rows.pivot_table(index=["optimizer", "mixer"], columns="lr", values="clean_val_bits_per_byte")
    lines = [["mixer", "optimizer", *(f"{rate:g}" for rate in scores)]]
    for optimizer, mixer in product(OPTIMIZERS, in_order(rows["mixer"], MIXERS)):
        if (optimizer, mixer) in scores.index:
            own = scores.loc[optimizer, mixer]
            tried = own.dropna()
            best, edges = tried.idxmin(), (tried.index[0], tried.index[-1])
            texts = {rate: f"{score:.4f}" for rate, score in tried.items()}
            texts[best] = f"**{texts[best]}**{'†' if best in edges else ''}"
            lines.append([mixer, OPTIMIZERS[optimizer], *(texts.get(rate, "") for rate in own.index)])
    return noted(lines, 2, note)


def bits_lines(plain: pd.DataFrame) -> list[list[str]]:
    """The mean of each mixer; how many seeds, if not three."""
    cells = {cell: list(own) for cell, own in plain.groupby(["mixer", "optimizer"])[BITS]}
    sizes = plain.groupby("mixer")["num_params"].first()
    lines = [["mixer", "parameters", *OPTIMIZERS.values()]]
    for mixer in in_order(sizes.index, MIXERS):
        own = [cells.get((mixer, optimizer), []) for optimizer in OPTIMIZERS]
        texts = [mean_change(one, ".4f", usual=3) for one in own]
        lines.append([mixer, f"{sizes[mixer]:,.0f}", *texts])
    return lines


def differences_table(plain: pd.DataFrame) -> str:
    """The differences of attention and Parallax from each other and from the others, and some within the family."""
    bits = plain.pivot(index=["optimizer", "seed"], columns="mixer", values=BITS)
    lines = [["difference", *OPTIMIZERS.values(), "Muon less AdamW"]]
    for more, less in [("parallax", "attn"), *product(("attn", "parallax"), MIXERS[2:]), *OF_FAMILY]:
        by_seed = (bits[more] - bits[less]).unstack("optimizer").reindex(columns=list(OPTIMIZERS))
        changes = [by_seed["muon"], by_seed["adamw"], by_seed["muon"] - by_seed["adamw"]]
        texts = [mean_change(own.dropna(), "+.4f", usual=3) for own in changes]
        lines.append([f"{more} less {less}", *texts])
    return noted(lines, 1, DIFFERENCES_NOTE)


def controls_table(controls: pd.DataFrame, plain: pd.DataFrame) -> str:
    """What each control changes, beside the plain run of its seed."""
    by_place = plain.set_index(["mixer", "optimizer", "seed"])
    found: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for _, run in controls.iterrows():
        beside = by_place.loc[run["mixer"], run["optimizer"], run["seed"]]
        name = run["mixer"], changed_keys(run, beside), f"{run['num_params']:,.0f}"
        found.setdefault(name, {}).setdefault(run["optimizer"], []).append(run[BITS] - beside[BITS])
    lines = [["mixer", "control", "parameters", *OPTIMIZERS.values()]]
    for name in sorted(found, key=lambda one: (MIXERS.index(one[0]), one)):
        lines.append([*name, *(mean_change(found[name].get(of, []), "+.4f") for of in OPTIMIZERS)])
    pair = plain[plain["mixer"].isin(["attn", "parallax"])]
    spread = pair.groupby(["optimizer", "mixer"])[BITS].var().groupby("optimizer").mean() ** 0.5
    told = ", ".join(f"{spread[of]:.4f} ({name})" for of, name in OPTIMIZERS.items())
    return noted(lines, 2, CONTROLS_NOTE.format(told))


def schedules_table(plain: pd.DataFrame, scheduled: pd.DataFrame, metrics: pd.DataFrame) -> str:
    """Whether the lead of Parallax shrinks in the decay."""
    runs = pd.concat([plain, scheduled])
    runs = runs[runs["mixer"].isin(MIXERS[:2])].set_index(["run_id", "seed"])
    bits = metrics[metrics["run_id"].isin(runs.index.unique("run_id"))]
    bits = bits.set_index(["run_id", "seed", "step"])["test_bits_per_byte"].unstack()
    begin, end = bits.columns[-3], bits.columns[-1]  # after 80 and 100% of training
    runs = runs.join(bits[[begin, end]])
    for key in ("gamma", "warmup"):
        told = (runs["schedule"] == "wsd") & (runs[f"schedule.{key}"] > 0)
        runs.loc[told, "schedule"] += f", {key} " + runs[f"schedule.{key}"].map("{:g}".format)
    sides = runs.reset_index().pivot(index=["optimizer", "schedule", "seed"], columns="mixer", values=[begin, end])
    lead = (sides.xs("attn", axis=1, level="mixer") - sides.xs("parallax", axis=1, level="mixer")).dropna()
    lead["change"] = lead[end] - lead[begin]
    lines = [["optimizer", "schedule", "lead after 80%", "at the end", "change"]]
    for optimizer, schedule in product(OPTIMIZERS, ["wsd", *sorted(set(runs["schedule"]) - {"wsd"})]):
        own = lead.loc[optimizer, schedule]
        lines.append([OPTIMIZERS[optimizer], schedule, *(mean_change(own[key], "+.4f") for key in own)])
    return noted(lines, 2, SCHEDULES_NOTE)


def conversion_table(going_on: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Attention's weights trained on as attention and as Parallax, from the best start that has runs."""
    starts = rows[rows["run_id"].isin(going_on["model.start_from"])]
    start = starts.loc[starts["official_bits_per_byte"].idxmin()]
    going_on = at_better_rate(going_on[going_on["model.start_from"] == start["run_id"]])
    seeds = going_on.pivot(index="seed", columns=["optimizer", "mixer"], values=BITS)
    rates = going_on.groupby(["optimizer", "mixer"])["lr"].first()
    lines = [["optimizer", "as attention", "as Parallax", "Parallax less attention"]]
    for optimizer, name in OPTIMIZERS.items():
        own = seeds[optimizer]
        texts = [f"{mean_change(own[mixer], '.4f')} ({rates[optimizer, mixer]:g})" for mixer in MIXERS[:2]]
        lines.append([name, *texts, mean_change(own["parallax"] - own["attn"], "+.4f")])
    return noted(lines, 1, CONVERSION_NOTE.format(start["lr"], start["seed"], start["official_bits_per_byte"]))


def changed_keys(run: pd.Series, beside: pd.Series) -> str:
    """What differs in mixer, model, schedule and rate; another schedule's own keys are not told."""
    more = ("lr", "schedule", "schedule.gamma", "schedule.warmup")
    keys = [key for key in run.index if key.startswith(("mixer.", "model.")) or key in more]
    values = {key: as_yaml(run[key]) for key in keys if as_yaml(run[key]) != as_yaml(beside[key])}
    return ", ".join(f"`{key}={value}`" for key, value in values.items() if value != "null")


def text_curves(plain: pd.DataFrame, metrics: pd.DataFrame) -> Figure:
    """A panel for each optimizer: the score on test by tokens, mean and range over seeds."""
    metrics = metrics[metrics["run_id"].isin(plain["run_id"])]
    look = styles(map(Column, plain["mixer"].unique()))
    look = {Column(mixer): look[Column(mixer)] for mixer in MIXERS}
    with figure_style():
        sheet = Sheet(None, list(OPTIMIZERS.values()))
        for panel, optimizer in zip(sheet.panels, OPTIMIZERS, strict=True):
            for column, style in look.items():
                own = metrics[(metrics["optimizer"] == optimizer) & (metrics["mixer"] == column.mixer)]
                values = by_replica(own, "test_bits_per_byte", own["replica"].unique())
                draw_curves(panel, values, style.colour, marker=style.marker)
            show_epochs(panel, tokens=True)
        sheet.panels[0].set_ylabel("bits per byte on test")
        return sheet.finish("Language models of text", SEEDS, line_handles(look), 2.4)
