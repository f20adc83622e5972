"""Language models of text."""

from itertools import product
from pathlib import Path

import pandas as pd
from makers.analysis import claims_table
from makers.common import RECORDS, copy_files, mean_change, write_in_page
from matplotlib.figure import Figure

from mixerlab.analyse import write as write_analysis
from mixerlab.records.names import in_order, rank
from mixerlab.records.schema import Score
from mixerlab.sweeps.figures.curves import SEEDS, by_replica, draw_curves, show_epochs
from mixerlab.sweeps.figures.marks import line_handles
from mixerlab.sweeps.figures.sheet import Sheet, figure_style, save
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.tables.cells import at_best_rate
from mixerlab.sweeps.tables.collect import curves, rows_of
from mixerlab.sweeps.tables.columns import Column
from mixerlab.sweeps.tables.swept import as_yaml
from mixerlab.sweeps.tables.writers import markdown

MIXERS = ("attn", "parallax", "gdn", "kda", "mesa", "mamba", "attn+gdn")
OF_FAMILY = [("affine_linear", "linear"), ("affine_mesa", "mesa"), ("affine_linear", "value_average")]
OPTIMIZERS = ["Muon", "AdamW"]
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
    made = rows_of(folder / RECORDS), curves(folder / RECORDS)
    rows, metrics = (own.replace({"optimizer": {"muon": "Muon", "adamw": "AdamW"}}) for own in made)
    searched, begun = rows["seed"] == SEARCH_SEED, plain_runs(rows)
    plain = at_better_rate(begun)
    controls = rows[~has_seeds(rows) & ~searched].merge(plain[CELL].drop_duplicates())
    pages = {
        "rates": f"{markdown(rates_table(rows[searched]), RATES_NOTE)}\n{markdown(rates_table(begun), CHOSEN_NOTE)}",
        "differences": markdown(differences_table(plain), DIFFERENCES_NOTE),
        "controls": markdown(controls_table(controls, plain), CONTROLS_NOTE.format(deviations_text(plain))),
        "schedules": markdown(schedules_table(plain, controls, metrics), SCHEDULES_NOTE),
        "conversion": conversion_page(rows),
    }
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text)
    write_in_page(folder, "bits per byte", bits_table(plain))
    save(text_curves(plain, metrics), folder / "curves")
    inside = pd.read_csv(folder / "inside.csv.xz")
    inside = inside[inside["run_id"].isin(plain["run_id"])]
    write_analysis(inside, scratch)
    copy_files(scratch, folder, ["correction.png", "scores.png", "stable_ranks.md"])
    # The claims are of WSD after the 60 epochs of MAD; this is WSD at the end of training too.
    inside = inside.assign(study="optimizers", epochs=60, variant=inside["variant"] + ", wsd")
    (folder / "claims.md").write_text(markdown(claims_table(inside), CLAIMS_NOTE))


def has_seeds(rows: pd.DataFrame) -> pd.Series:
    """Whether a row is of a run of several seeds."""
    return rows.groupby("run_id")["seed"].transform("nunique") > 1


def plain_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Those of several seeds from initial values."""
    return rows[has_seeds(rows) & (rows["seed"] != SEARCH_SEED) & rows["model.start_from"].isna()]


def at_better_rate(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each mixer and optimizer the rows at the rate that is better on validation, on the mean of its seeds."""
    return at_best_rate(rows, CELL[:2], "clean", Score("bits_per_byte", higher_is_better=False))


def by_optimizer(texts: pd.Series) -> pd.DataFrame:
    """Texts in a column for each optimizer, behind that of the parameters."""
    table = texts.unstack("optimizer")[OPTIMIZERS].reset_index("parameters")
    return table.reindex(in_order(table.index.unique("mixer"), MIXERS), level="mixer")


def rates_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds by learning rate."""
    scores = rows.pivot_table("clean_val_bits_per_byte", ["mixer", "optimizer"], "lr")
    texts = scores.map("{:.4f}".format, na_action="ignore")
    for place, own in scores.iterrows():
        tried = own.dropna()
        best = tried.idxmin()
        texts.loc[place, best] = f"**{texts.loc[place, best]}**{'†' if best in tried.index[[0, -1]] else ''}"
    lines = sorted(texts.index, key=lambda place: (OPTIMIZERS.index(place[1]), rank(place[0], MIXERS)))
    return texts.loc[lines].rename(columns="{:g}".format)


def bits_table(plain: pd.DataFrame) -> pd.DataFrame:
    """The mean of each mixer; how many seeds, if not three."""
    sized = plain.assign(parameters=plain["num_params"].map("{:,.0f}".format))
    texts = sized.groupby(["mixer", "parameters", "optimizer"])[BITS].agg(mean_change, ".4f", usual=3)
    return by_optimizer(texts)


def differences_table(plain: pd.DataFrame) -> pd.DataFrame:
    """The differences of attention and Parallax from each other and from the others, and some within the family."""
    bits = plain.pivot(index=["optimizer", "seed"], columns="mixer", values=BITS)
    pairs = [("parallax", "attn"), *product(("attn", "parallax"), MIXERS[2:]), *OF_FAMILY]
    changes = pd.DataFrame({f"{more} less {less}": bits[more] - bits[less] for more, less in pairs})
    sides = {optimizer: changes.loc[optimizer] for optimizer in OPTIMIZERS}
    sides["Muon less AdamW"] = sides["Muon"] - sides["AdamW"]
    table = pd.DataFrame({name: own.apply(mean_change, form="+.4f", usual=3) for name, own in sides.items()})
    return table.rename_axis("difference")


def controls_table(controls: pd.DataFrame, plain: pd.DataFrame) -> pd.DataFrame:
    """What each control changes, beside the plain run of its seed."""
    both = controls.merge(plain, on=["mixer", "optimizer", "seed"], suffixes=("", " plain"))
    changes = both[["mixer", "optimizer"]].assign(
        control=both.apply(changed_keys, axis=1),
        parameters=both["num_params"].map("{:,.0f}".format),
        change=both[BITS] - both[f"{BITS} plain"],
    )
    lines = changes.groupby(["mixer", "control", "parameters", "optimizer"])
    return by_optimizer(lines["change"].agg(mean_change, "+.4f"))


def changed_keys(run: pd.Series) -> str:
    """What differs in mixer, model, schedule and rate from the plain run; another schedule's own keys are not told."""
    more = ("lr", "schedule", "schedule.gamma", "schedule.warmup")
    keys = [key for key in run.index if f"{key} plain" in run and (key.startswith(("mixer.", "model.")) or key in more)]
    values = {key: as_yaml(run[key]) for key in keys if as_yaml(run[key]) != as_yaml(run[f"{key} plain"])}
    return ", ".join(f"`{key}={value}`" for key, value in values.items() if value != "null")


def deviations_text(plain: pd.DataFrame) -> str:
    """Standard deviations between the seeds of attention and Parallax, by optimizer."""
    variances = plain[plain["mixer"].isin(MIXERS[:2])].groupby(["optimizer", "mixer"])[BITS].var()
    deviations = variances.groupby("optimizer").mean() ** 0.5
    return ", ".join(f"{deviations[optimizer]:.4f} ({optimizer})" for optimizer in OPTIMIZERS)


def schedules_table(plain: pd.DataFrame, controls: pd.DataFrame, metrics: pd.DataFrame) -> pd.DataFrame:
    """Whether the lead of Parallax shrinks in the decay, of the plain runs and of controls with other schedules."""
    runs = pd.concat([plain, controls], ignore_index=True)
    runs = runs[runs["mixer"].isin(MIXERS[:2])]
    for key in ("gamma", "warmup"):
        told = (runs["schedule"] == "wsd") & (runs[f"schedule.{key}"] > 0)
        runs.loc[told, "schedule"] += f", {key} " + runs[f"schedule.{key}"].map("{:g}".format)
    runs = runs[runs["run_id"].isin(plain["run_id"]) | (runs["schedule"] != "wsd")]
    scores = metrics[["run_id", "seed", "step", "test_bits_per_byte"]].merge(
        runs[["run_id", "seed", "schedule", *CELL]]
    )
    scores = scores.pivot_table("test_bits_per_byte", ["optimizer", "schedule", "seed", "step"], "mixer")
    lead = (scores["attn"] - scores["parallax"]).dropna().unstack("step")
    lead = lead.iloc[:, [-3, -1]].set_axis(["lead after 80%", "at the end"], axis=1)
    lead["change"] = lead["at the end"] - lead["lead after 80%"]
    table = lead.groupby(["optimizer", "schedule"]).agg(mean_change, "+.4f")
    schedules = ["wsd", *sorted(set(runs["schedule"]) - {"wsd"})]
    return table.loc[list(product(OPTIMIZERS, schedules))]


def conversion_page(rows: pd.DataFrame) -> str:
    """Attention's weights trained on as attention and as Parallax, from the best start that has runs."""
    starts = rows[rows["run_id"].isin(rows["model.start_from"])]
    start = starts.loc[starts["official_bits_per_byte"].idxmin()]
    going_on = at_better_rate(rows[rows["model.start_from"] == start["run_id"]])
    seeds = going_on.pivot(index=["optimizer", "seed"], columns="mixer", values=BITS)
    rates = going_on.groupby(["optimizer", "mixer"])["lr"].first().map(" ({:g})".format).unstack()
    table = seeds.groupby("optimizer").agg(mean_change, ".4f") + rates
    changes = (seeds["parallax"] - seeds["attn"]).groupby("optimizer")
    table["Parallax less attention"] = changes.agg(mean_change, "+.4f")
    table = table.rename(columns={"attn": "as attention", "parallax": "as Parallax"})
    return markdown(
        table.loc[OPTIMIZERS], CONVERSION_NOTE.format(start["lr"], start["seed"], start["official_bits_per_byte"])
    )


def text_curves(plain: pd.DataFrame, metrics: pd.DataFrame) -> Figure:
    """A panel for each optimizer: the score on test by tokens, mean and range over seeds."""
    metrics = metrics[metrics["run_id"].isin(plain["run_id"])]
    look = styles(map(Column, plain["mixer"].unique()))
    look = {Column(mixer): look[Column(mixer)] for mixer in MIXERS}
    with figure_style():
        sheet = Sheet(None, OPTIMIZERS)
        for panel, optimizer in zip(sheet.panels, OPTIMIZERS, strict=True):
            for column, style in look.items():
                own = metrics[(metrics["optimizer"] == optimizer) & (metrics["mixer"] == column.mixer)]
                values = by_replica(own, "test_bits_per_byte", own["replica"].unique())
                draw_curves(panel, values, style.colour, marker=style.marker)
            show_epochs(panel, tokens=True)
        sheet.panels[0].set_ylabel("bits per byte on test")
        return sheet.finish("Language models of text", SEEDS, line_handles(look), 2.4)
