"""Language models of text."""

import shutil
from itertools import product
from pathlib import Path

import pandas as pd
from makers.analysis import claims_of_paper
from makers.common import RECORDS, difference_of_sums, folder_of, mean_change, noted
from matplotlib.figure import Figure

from mixerlab.analyse import write as write_analysis
from mixerlab.records.names import in_order
from mixerlab.sweeps.figures.curves import SEEDS, by_replica, draw_curves, show_epochs
from mixerlab.sweeps.figures.marks import line_handles
from mixerlab.sweeps.figures.sheet import Sheet, figure_style, save
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.tables.collect import curves, rows_of
from mixerlab.sweeps.tables.columns import Column
from mixerlab.sweeps.tables.swept import as_yaml

MIXERS = ("attn", "parallax", "gdn", "kda", "mesa", "mamba", "attn+gdn")
OPTIMIZERS = {"muon": "Muon", "adamw": "AdamW"}
SEARCH_SEED = 3
BITS = "clean_bits_per_byte"
ENGLISH = "Bits per byte of test rows at the checkpoint of the lowest validation loss, the lower the better"
RATES_NOTE = """\
Bits per byte of validation rows at the end of the search for the learning rate, one seed. Bold: the rate that the runs
have; †: it is the smallest or the largest that was tried."""
BITS_NOTE = f"""\
{ENGLISH}: mean over seeds
(how many, if not three) ± half of Student's 95% interval."""
DIFFERENCES_NOTE = """\
Differences of these means, below 0 where the first is better; after ±, half of Welch's interval of 95%."""
CONTROLS_NOTE = f"""\
{ENGLISH}: one run less the
plain run of its mixer, optimizer and seed. `model.d_ff`: about as many parameters as Parallax (of attention) or as
attention (of the others). Standard deviation between seeds of the plain runs of attention and Parallax:
{{}}; of the difference of two runs it is 1.4 times that."""
CLAIMS_NOTE = """\
Differences that the claim says to be above or below 0, or none: means over three seeds ± half of Student's 95%
interval, over layers if none is named; of eight layers the last one. The verdict is by the interval."""


def make(scratch: Path) -> None:
    """Language models that `study.py` trains, told by what only they have: the search its seed, plain ones several."""
    folder = folder_of("text")
    rows = rows_of(folder / RECORDS)
    rows = rows[rows["model.start_from"].isna()]  # those that go on from weights have no table yet
    searched, several = rows["seed"] == SEARCH_SEED, rows.groupby("run_id")["seed"].transform("nunique") > 1
    plain = at_better_rate(rows[several & ~searched])
    (folder / "rates.md").write_text(rates_table(rows[searched]))
    (folder / "bits_per_byte.md").write_text(bits_table(plain))
    (folder / "controls.md").write_text(controls_table(rows[~several & ~searched], plain))
    save(text_curves(plain, curves(folder / RECORDS)), folder / "curves")
    inside = pd.read_csv(folder / "inside.csv.xz")
    write_analysis(inside, scratch)
    for name in ("correction.png", "scores.png", "stable_ranks.md"):
        shutil.copyfile(scratch / name, folder / name)
    # The claims are of WSD after the 60 epochs of MAD; this is WSD at the end of training too.
    inside = inside.assign(study="optimizers", epochs=60, variant=inside["variant"] + ", wsd")
    (folder / "claims.md").write_text(claims_of_paper(inside, CLAIMS_NOTE))


def at_better_rate(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each mixer and optimizer the rows at the rate that is better on validation, on the mean of its seeds."""
    means = rows.groupby(["mixer", "optimizer", "lr"])["clean_val_bits_per_byte"].mean()
    return rows[pd.MultiIndex.from_frame(rows[["mixer", "optimizer", "lr"]]).isin(means.groupby(level=[0, 1]).idxmin())]


def rates_table(rows: pd.DataFrame) -> str:
    scores = rows.pivot(index=["optimizer", "mixer"], columns="lr", values="clean_val_bits_per_byte")
    lines = [["mixer", "optimizer", *(f"{rate:g}" for rate in scores)]]
    for optimizer, mixer in product(OPTIMIZERS, in_order(rows["mixer"], MIXERS)):
        if (optimizer, mixer) in scores.index:
            own = scores.loc[optimizer, mixer]
            tried = own.dropna()
            best, edges = tried.idxmin(), (tried.index[0], tried.index[-1])
            texts = {rate: f"{score:.3f}" for rate, score in tried.items()}
            texts[best] = f"**{texts[best]}**{'†' if best in edges else ''}"
            lines.append([mixer, OPTIMIZERS[optimizer], *(texts.get(rate, "") for rate in own.index)])
    return noted(lines, 2, RATES_NOTE)


def bits_table(plain: pd.DataFrame) -> str:
    """The means of each mixer, and the differences of attention and Parallax from each other and from the others."""
    cells = {cell: list(own) for cell, own in plain.groupby(["mixer", "optimizer"])[BITS]}
    sizes = plain.groupby("mixer")["num_params"].first()
    lines = [["mixer", "parameters", *OPTIMIZERS.values()]]
    for mixer in in_order(sizes.index, MIXERS):
        own = [cells.get((mixer, optimizer), []) for optimizer in OPTIMIZERS]
        texts = [mean_change(one, ".4f") + ("" if len(one) == 3 else f" ({len(one)})") if one else "" for one in own]
        lines.append([mixer, f"{sizes[mixer]:,.0f}", *texts])
    below = [["difference", *OPTIMIZERS.values(), "Muon less AdamW"]]
    for more, less in [("parallax", "attn"), *product(("attn", "parallax"), MIXERS[2:])]:
        sides = [(cells.get((more, of)), cells.get((less, of))) for of in OPTIMIZERS]
        texts = [difference_of_sums([one], [other], 4) if one and other else "" for one, other in sides]
        if any(texts):
            (one, other), (last, first) = sides
            texts.append(difference_of_sums([one, first], [other, last], 4) if all(texts) else "")
            below.append([f"{more} less {less}", *texts])
    return noted(lines, 1, BITS_NOTE) + "\n" + noted(below, 1, DIFFERENCES_NOTE)


def controls_table(controls: pd.DataFrame, plain: pd.DataFrame) -> str:
    """What each control changes, beside the plain run of its seed."""
    by_place = plain.set_index(["mixer", "optimizer", "seed"])
    found: dict[tuple[str, str, str], dict[str, str]] = {}
    for _, run in controls.iterrows():
        place = run["mixer"], run["optimizer"], run["seed"]
        if place in by_place.index:
            beside = by_place.loc[place]
            name = run["mixer"], changed_keys(run, beside), f"{run['num_params']:,.0f}"
            found.setdefault(name, {})[run["optimizer"]] = f"{run[BITS] - beside[BITS]:+.4f}"
    lines = [["mixer", "control", "parameters", *OPTIMIZERS.values()]]
    for name in sorted(found, key=lambda one: (MIXERS.index(one[0]), one)):
        lines.append([*name, *(found[name].get(of, "") for of in OPTIMIZERS)])
    pair = plain[plain["mixer"].isin(["attn", "parallax"])]
    spread = pair.groupby(["optimizer", "mixer"])[BITS].var().groupby("optimizer").mean() ** 0.5
    told = ", ".join(f"{spread[of]:.4f} ({name})" for of, name in OPTIMIZERS.items() if of in spread)
    return noted(lines, 2, CONTROLS_NOTE.format(told))


def changed_keys(run: pd.Series, beside: pd.Series) -> str:
    """What differs in mixer, model, schedule and rate; another schedule's own keys are not told."""
    more = ("lr", "schedule", "schedule.gamma")
    keys = [key for key in run.index if key.startswith(("mixer.", "model.")) or key in more]
    values = {key: as_yaml(run[key]) for key in keys if as_yaml(run[key]) != as_yaml(beside[key])}
    return ", ".join(f"`{key}={value}`" for key, value in values.items() if value != "null")


def text_curves(plain: pd.DataFrame, metrics: pd.DataFrame) -> Figure:
    """A panel for each optimizer: the score on test by tokens, mean and range over seeds."""
    metrics = metrics[metrics["run_id"].isin(plain["run_id"])]
    look = styles(map(Column, plain["mixer"].unique()))
    look = {Column(mixer): look[Column(mixer)] for mixer in MIXERS if Column(mixer) in look}
    with figure_style():
        sheet = Sheet(None, list(OPTIMIZERS.values()))
        for panel, optimizer in zip(sheet.panels, OPTIMIZERS, strict=True):
            for column, style in look.items():
                own = metrics[(metrics["optimizer"] == optimizer) & (metrics["mixer"] == column.mixer)]
                if len(own):
                    values = by_replica(own, "test_bits_per_byte", own["replica"].unique())
                    draw_curves(panel, values, style.colour, marker=style.marker)
            show_epochs(panel, tokens=True)
        sheet.panels[0].set_ylabel("bits per byte on test")
        return sheet.finish("Language models of text", SEEDS, line_handles(look), 2.4)
