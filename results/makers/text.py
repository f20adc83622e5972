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

OF_TEXT = ("attn", "parallax", "gdn", "kda", "mesa", "mamba", "attn+gdn")
TEXT_OPTIMIZERS = {"muon": "Muon", "adamw": "AdamW"}
SEARCH_SEED = 3
BITS = "clean_bits_per_byte"
ENGLISH = "Bits per byte of test rows at the checkpoint of the lowest validation loss, the lower the better"
TEXT_RATES_NOTE = """\
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
TEXT_CLAIMS_NOTE = """\
Differences that the claim says to be above or below 0, or none: means over three seeds ± half of Student's 95%
interval, over layers if none is named; of eight layers the last one. The verdict is by the interval."""
CONVERSION_NOTE = f"""\
{ENGLISH}. All runs go on
from one seed of attention that Muon trained, the best on test ({{:.4f}}). Mean over three seeds of going on ± half of
Student's 95% interval (learning rate, that of the mixer's plain run); of the differences by seed."""


def make(scratch: Path) -> None:
    """Language models that `study.py` trains: a part whose runs are not there has no file.

    Its runs are told by what only they have: the search its seed, the plain ones several seeds.
    """
    folder = folder_of("text")
    rows = rows_of(folder / RECORDS)
    searched, converted = rows["seed"] == SEARCH_SEED, rows["model.start_from"].notna()
    plain, going_on = at_better_rate(plain_runs(rows)), at_better_rate(rows[converted])
    going_on = going_on[going_on["model.start_from"].isin(plain["run_id"])]
    made = {
        "rates": rates_of_text(rows[searched]),
        "bits_per_byte": bits_table(plain),
        "controls": controls_table(rows[~has_seeds(rows) & ~searched], plain),
        "conversion": conversion_table(going_on, plain),
    }
    for name, table_of in made.items():
        if table_of:
            (folder / f"{name}.md").write_text(table_of)
    inside = pd.read_csv(folder / "inside.csv.xz")
    write_analysis(inside, scratch)
    for name in ("correction.png", "scores.png", "stable_ranks.md"):
        shutil.copyfile(scratch / name, folder / name)
    inside = inside.assign(study="optimizers", epochs=60, variant=inside["variant"] + ", wsd")
    (folder / "claims.md").write_text(claims_of_paper(inside, TEXT_CLAIMS_NOTE))
    if len(plain):
        save(text_curves(plain, curves(folder / RECORDS)), folder / "curves")


def has_seeds(rows: pd.DataFrame) -> pd.Series:
    return rows.groupby("run_id")["seed"].transform("nunique") > 1


def plain_runs(rows: pd.DataFrame) -> pd.DataFrame:
    """Those of several seeds from initial values."""
    return rows[has_seeds(rows) & (rows["seed"] != SEARCH_SEED) & rows["model.start_from"].isna()]


def at_better_rate(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each mixer and optimizer the rows at the rate that is better on validation, on the mean of its seeds."""
    means = rows.groupby(["mixer", "optimizer", "lr"])["clean_val_bits_per_byte"].mean()
    return rows[pd.MultiIndex.from_frame(rows[["mixer", "optimizer", "lr"]]).isin(means.groupby(level=[0, 1]).idxmin())]


def rates_of_text(rows: pd.DataFrame) -> str:
    scores = rows.pivot(index=["optimizer", "mixer"], columns="lr", values="clean_val_bits_per_byte")
    lines = [["mixer", "optimizer", *(f"{rate:g}" for rate in scores)]]
    for optimizer, mixer in product(TEXT_OPTIMIZERS, in_order(rows["mixer"], OF_TEXT)):
        if (optimizer, mixer) in scores.index:
            own = scores.loc[optimizer, mixer]
            tried = own.dropna()
            best, edges = tried.idxmin(), (tried.index[0], tried.index[-1])
            texts = {rate: f"{score:.3f}" for rate, score in tried.items()}
            texts[best] = f"**{texts[best]}**{'†' if best in edges else ''}"
            lines.append([mixer, TEXT_OPTIMIZERS[optimizer], *(texts.get(rate, "") for rate in own.index)])
    return noted(lines, 2, TEXT_RATES_NOTE) if lines[1:] else ""


def bits_table(plain: pd.DataFrame) -> str:
    """The means of each mixer, and the differences of attention and Parallax from each other and from the others."""
    cells = {cell: list(own) for cell, own in plain.groupby(["mixer", "optimizer"])[BITS]}
    sizes = plain.groupby("mixer")["num_params"].first()
    lines = [["mixer", "parameters", *TEXT_OPTIMIZERS.values()]]
    for mixer in in_order(sizes.index, OF_TEXT):
        own = [cells.get((mixer, optimizer), []) for optimizer in TEXT_OPTIMIZERS]
        texts = [mean_change(one, ".4f") + ("" if len(one) == 3 else f" ({len(one)})") if one else "" for one in own]
        lines.append([mixer, f"{sizes[mixer]:,.0f}", *texts])
    below = [["difference", *TEXT_OPTIMIZERS.values(), "Muon less AdamW"]]
    for more, less in [("parallax", "attn"), *product(("attn", "parallax"), OF_TEXT[2:])]:
        sides = [(cells.get((more, of)), cells.get((less, of))) for of in TEXT_OPTIMIZERS]
        texts = [difference_of_sums([one], [other], 4) if one and other else "" for one, other in sides]
        if any(texts):
            (one, other), (last, first) = sides
            texts.append(difference_of_sums([one, first], [other, last], 4) if all(texts) else "")
            below.append([f"{more} less {less}", *texts])
    return noted(lines, 1, BITS_NOTE) + "\n" + noted(below, 1, DIFFERENCES_NOTE) if lines[1:] else ""


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
    lines = [["mixer", "control", "parameters", *TEXT_OPTIMIZERS.values()]]
    for name in sorted(found, key=lambda one: (OF_TEXT.index(one[0]), one)):
        lines.append([*name, *(found[name].get(of, "") for of in TEXT_OPTIMIZERS)])
    pair = plain[plain["mixer"].isin(["attn", "parallax"])]
    spread = pair.groupby(["optimizer", "mixer"])[BITS].var().groupby("optimizer").mean() ** 0.5
    told = ", ".join(f"{spread[of]:.4f} ({name})" for of, name in TEXT_OPTIMIZERS.items() if of in spread)
    return noted(lines, 2, CONTROLS_NOTE.format(told)) if lines[1:] else ""


def changed_keys(run: pd.Series, beside: pd.Series) -> str:
    """What differs in mixer, model, schedule and rate; another schedule's own keys are not told."""
    more = ("lr", "schedule", "schedule.gamma")
    keys = [key for key in run.index if key.startswith(("mixer.", "model.")) or key in more]
    values = {key: as_yaml(run[key]) for key in keys if as_yaml(run[key]) != as_yaml(beside[key])}
    return ", ".join(f"`{key}={value}`" for key, value in values.items() if value != "null")


def conversion_table(converted: pd.DataFrame, plain: pd.DataFrame) -> str:
    if converted.empty:
        return ""
    seeds = converted.pivot(index="seed", columns=["mixer", "optimizer"], values=BITS)
    rates = converted.groupby(["mixer", "optimizer"])["lr"].first()
    lines = [["trained on as", *TEXT_OPTIMIZERS.values(), "Muon less AdamW"]]
    sides = {mixer: seeds[mixer] for mixer in OF_TEXT[:2] if mixer in seeds}
    if len(sides) == 2:
        sides["parallax less attn"] = (sides["parallax"] - sides["attn"]).dropna(axis=1, how="all")
    for name, own in sides.items():
        form = "+.4f" if name not in seeds else ".4f"
        texts = [mean_change(list(own[of].dropna()), form) if of in own else "" for of in TEXT_OPTIMIZERS]
        texts = [
            f"{one} ({rates[name, of]:g})" if (name, of) in rates else one
            for of, one in zip(TEXT_OPTIMIZERS, texts, strict=True)
        ]
        change = mean_change(list((own["muon"] - own["adamw"]).dropna()), "+.4f") if all(texts) else ""
        lines.append([name, *texts, change])
    start = plain.loc[plain["run_id"].isin(converted["model.start_from"]), "official_bits_per_byte"]
    return noted(lines, 1, CONVERSION_NOTE.format(start.min()))


def text_curves(plain: pd.DataFrame, metrics: pd.DataFrame) -> Figure:
    """A panel for each optimizer: the score on test by tokens, mean and range over seeds."""
    metrics = metrics[metrics["run_id"].isin(plain["run_id"])]
    look = styles(map(Column, plain["mixer"].unique()))
    look = {Column(mixer): look[Column(mixer)] for mixer in OF_TEXT if Column(mixer) in look}
    with figure_style():
        sheet = Sheet(None, list(TEXT_OPTIMIZERS.values()))
        for panel, optimizer in zip(sheet.panels, TEXT_OPTIMIZERS, strict=True):
            for column, style in look.items():
                own = metrics[(metrics["optimizer"] == optimizer) & (metrics["mixer"] == column.mixer)]
                if len(own):
                    values = by_replica(own, "test_bits_per_byte", own["replica"].unique())
                    draw_curves(panel, values, style.colour, marker=style.marker)
            show_epochs(panel, tokens=True)
        sheet.panels[0].set_ylabel("bits per byte on test")
        return sheet.finish("Language models of text", SEEDS, line_handles(look), 2.4)
