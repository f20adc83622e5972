"""`mixerlab analyse`: rows, figures and a table of runs that kept their weights."""

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import TINY, ran, records, refusal
from every_mixer import Cumulated

import mixerlab
from mixerlab.analyse import analyse
from mixerlab.mixers.base import AttentionParts
from mixerlab.records.files import run_folder
from mixerlab.sweeps.figures.inside import QUANTILES, SCORES, by_layer, over_training, score_maps

ROW = {"task": "icr", "setting": "baseline", "variant": "", "layer": 1, "moment": "official", "epochs": 2, "mean": 0.5}
ROW |= dict.fromkeys(QUANTILES, 0.5)
KEPT = ("trainer.snapshots=[0,2]", "trainer.keep_weights=official", "trainer.accelerator=cpu")


def trained(results, *overrides):
    record = mixerlab.run("task=icr", *TINY, *KEPT, *overrides, f"results_dir={results}")
    return str(run_folder(results, record.run_id))


def rows_in(folder):
    return pd.read_csv(folder / "measures.csv", keep_default_na=False, na_values=["", "nan"])


def test_rows_of_a_run_and_its_snapshots(tmp_path):
    """The seeds at the best of two rates, their reported weights and snapshots."""
    folder = trained(tmp_path, "mixer=parallax", "mixer.zero_init_rho=true", "seed=[3,5]")
    analyse([folder], tmp_path / "out", rows=3, formats=())
    rows, (record,) = rows_in(tmp_path / "out"), records(tmp_path).values()
    best = {row["lr"]: row for row in sorted(record["rows"], key=lambda row: row["official_accuracy"])}
    assert set(rows["lr"]) <= set(best) and rows["lr"].nunique() == 1 and set(rows["seed"]) == {3, 5}
    assert set(rows["moment"]) == {"official", "epoch-0", "epoch-2"}
    initial = rows[rows["epochs"] == 0]
    assert (initial.loc[initial["measure"].isin(["norm W_R", "norm rho", "cor"]), "mean"] == 0).all()
    trained_values = rows[(rows["epochs"] == 2) & (rows["measure"] == "norm rho")]
    assert len(trained_values) == 2 * 2 and (trained_values["mean"] > 0).all()
    assert "| icr" in (tmp_path / "out" / "stable_ranks.md").read_text()
    with pytest.raises(ValueError, match=r"mixerlab task=icr .* force=true 'trainer\.snapshots=\[0,1,2\]'"):
        mixerlab.load(folder, epochs=1)


def test_runs_of_two_learning_rates_join_as_in_tables_and_one_that_is_given_twice_counts_once(tmp_path):
    """As two runs, the rates are not two seeds more: the best one counts, as within a run."""
    folders = [trained(tmp_path, "mixer=attn", "seed=[3,5]", f"optimizer.lr={rate}") for rate in (1e-2, 1e-5)]
    copy = shutil.copytree(folders[0], tmp_path / "copy" / "runs" / Path(folders[0]).name)
    rows = rows_in(analyse([*folders, copy], tmp_path / "out", rows=1, formats=()))
    assert set(zip(rows["lr"], rows["seed"], strict=True)) == {(1e-2, 3), (1e-2, 5)}
    assert not rows.duplicated(["seed", "layer", "moment", "measure"]).any()


def test_runs_without_weights_are_left_out_and_no_figure_is_of_an_earlier_call(tmp_path, caplog):
    """As of `results/runs/*` with the runs of a sweep, even where these are better."""
    rates = {"none": "1e-2", "official": "1e-5"}
    bare, kept = (
        trained(tmp_path, "mixer=attn", f"trainer.keep_weights={keep}", "trainer.snapshots=[]", f"optimizer.lr={rate}")
        for keep, rate in rates.items()
    )
    out = analyse([bare, kept], rows=1)
    assert Path(bare).name in caplog.text and Path(kept).name not in caplog.text and set(rows_in(out)["lr"]) == {1e-5}
    assert {path.name.partition("_icr")[0] for path in out.glob("*.png")} == {
        "correction.png",
        "scores.png",
        "score_maps",
    }
    (Path(kept) / "metrics.csv").unlink()
    analyse([kept], rows=1, formats=())
    assert not list(out.glob("*.png"))
    with pytest.raises(ValueError, match=r"has no official weights .* trainer\.keep_weights=official"):
        analyse([bare])


def test_a_text_is_trained_on_by_tokens(tmp_path):
    (tmp_path / "text.txt").write_text("to be or not to be\n" * 200)
    text = ("task=text", f"task.path={tmp_path / 'text.txt'}", "task.tokens=1600", "trainer.eval_every=2")
    tiny = [override for override in TINY if not override.startswith(("task.", "trainer.epochs"))]
    sizes = ("task.seq_len=16", "trainer.batch_size=20", "mixer=parallax", "optimizer.lr=0.01")
    record = mixerlab.run(*text, *tiny, *KEPT, *sizes, f"results_dir={tmp_path}")
    out = analyse([run_folder(tmp_path, record.run_id)], tmp_path / "out", rows=2, formats=())
    rows = rows_in(out)
    assert set(zip(rows["moment"], rows["tokens"], strict=True)) >= {("epoch-0", 0), ("epoch-2", 4 * 20 * 16)}
    rows = rows.assign(variant="")
    of_icr = rows.assign(task="icr", tokens=np.nan)
    figure = over_training(pd.concat([rows, of_icr], ignore_index=True), {"COR": ["cor"]}, "title")
    assert [panel.get_xlabel() for panel in figure.axes] == ["epoch", "tokens"]
    assert [panel.lines[0].get_xdata().tolist() for panel in figure.axes] == [[0, 2], [0, 1280]]


@pytest.mark.slow
def test_several_runs_side_by_side(tmp_path):
    """Optimizers as variants; a mixer that is no attention has measures of its weights."""
    runs = [
        trained(tmp_path, f"mixer={mixer}", *more)
        for mixer in ("parallax", "gdn")
        for more in ((), ("optimizer=adamw", "schedule=cosine"))
    ]
    ran("analyse", *runs)
    out = tmp_path / "inside"
    rows = rows_in(out)
    assert set(zip(rows["mixer"], rows["variant"], strict=True)) == {
        (mixer, variant) for mixer in ("parallax", "gdn") for variant in ("muon, wsd", "adamw, cosine")
    }
    assert not rows.loc[rows["mixer"] == "gdn", "measure"].str.endswith(" p").any()
    figures = {path.stem.partition("_icr")[0] for path in out.glob("*.png")}
    assert figures == {"correction", "scores", "training", "score_maps"}
    head = (out / "stable_ranks.md").read_text().splitlines()[0]
    assert "| parallax, adamw, cosine |" in head and "| gdn, muon, wsd |" in head


def test_what_no_variant_tells_is_said(tmp_path, caplog):
    choices = ("mixer=gdn",), ("mixer=linear", "optimizer=adamw")
    runs = [trained(tmp_path, *own, "optimizer.lr=0.01") for own in choices]
    analyse(runs, tmp_path / "out", rows=1, formats=())
    assert "The mixers differ in more than the mixer: optimizer (muon: gdn; adamw: linear)." in caplog.text


def test_score_maps_of_models_with_other_layers():
    """Of one layer beside two: an empty place, and titles where they differ."""
    weights = np.tri(5) / 5
    two = [(f"layer {layer}, head 1", weights) for layer in (1, 2)]
    figure = score_maps({("parallax", "", "p"): two, ("lla", "", "s"): two, ("lla", "", "p"): two[1:]}, "maps")
    one, other = "layer 1, head 1", "layer 2, head 1"
    assert [panel.get_title() for panel in figure.axes] == [one, other, other, "", "", ""]
    drawn = [True, True, True, False, True, True]
    assert [bool(panel.images) for panel in figure.axes] == [panel.axison for panel in figure.axes] == drawn


def test_a_setting_whose_mixers_lack_a_measure_has_no_panel_of_it():
    """Attention has no correction: beside Parallax on another setting its place is empty."""
    rows = [
        ROW | {"mixer": mixer, "setting": setting, "measure": measure, "moment": moment, "epochs": epochs}
        for mixer, setting, measures in (
            ("attn", "baseline", ["norm q"]),
            ("parallax", "vocab_size-32", ["norm q", "cor"]),
        )
        for measure in measures
        for moment, epochs in (("official", 2), ("epoch-0", 0), ("epoch-2", 2))
    ]
    panels = {"COR": ["cor"], "|q|": ["norm q"]}
    for draw in (by_layer, over_training):
        figure = draw(pd.DataFrame(rows), panels, "title")
        titles = [panel.get_title() for panel in figure.axes]
        assert [panel.axison for panel in figure.axes] == [bool(panel.lines) for panel in figure.axes]
        assert [bool(panel.lines) for panel in figure.axes] == [False, True, True, True]
        assert titles[0] == "" and titles[1].endswith("|q|") and titles[2].endswith("COR")


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (["attn", "parallax a", "parallax b"], ["attn", "parallax, a", "parallax, b", "parallax, p"]),
        (
            ["attn a", "attn b", "parallax a", "parallax b", "lla a", "lla b"],
            ["a", "b", "attn", "parallax", "parallax, lla, p", "lla"],
        ),
    ],
)
def test_the_legend_tells_mixers_once(runs, expected):
    """By lines only where colours are those of variants that several mixers have."""
    rows = [
        ROW | {"mixer": mixer, "variant": variant, "measure": measure}
        for mixer, _, variant in (run.partition(" ") for run in runs)
        for measure in ("sink p", *(("cor", "sink s") if mixer != "attn" else ()))
    ]
    (legend,) = by_layer(pd.DataFrame(rows), SCORES, "title").legends
    assert [text.get_text() for text in legend.get_texts()] == expected
    lines = [line.get_linestyle() for line in legend.get_lines() if line.get_color() == "0.3"]
    assert len(set(lines)) == len(lines)


def test_figures_of_a_hybrid_beside_a_mixer_without_scores():
    """The one layer of a hybrid that has scores, and the one moment of a run, have a mark; others no place."""
    rows = [
        ROW | {"mixer": mixer, "layer": layer, "measure": measure, "moment": moment}
        for mixer, layer, measure in (("attn+gdn", 1, "sink p"), ("attn+gdn", 2, "norm W_Q"), ("mamba", 1, "norm W_Q"))
        for moment in ("official", "epoch-2")
    ]
    for draw in (by_layer, over_training):
        figure = draw(pd.DataFrame(rows), {"sink": ["sink p"]}, "title")
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["attn+gdn"]
        assert figure.axes[0].lines[0].get_marker() == "_"
    initial = [row | {"moment": "epoch-0", "epochs": 0} for row in rows if row["moment"] == "official"]
    (panel,) = by_layer(pd.DataFrame(rows + initial), {"sink": ["sink p"]}, "title").axes
    assert panel.lines[-1].get_color() == "0.6" and panel.lines[-1].get_marker() == "_"


def test_a_mixer_without_scores_has_measures_of_its_weights_and_no_figures(tmp_path):
    out = analyse([trained(tmp_path, "mixer=mamba", "optimizer.lr=0.01")], tmp_path / "out", rows=1)
    assert {path.name for path in out.iterdir()} == {"measures.csv", "stable_ranks.md"}
    names = [f"{layer}.weight" for layer in ("in_proj", "x_proj", "dt_proj", "out_proj")]
    assert set(rows_in(out)["measure"]) == {f"{kind} {name}" for kind in ("norm", "srank") for name in names}
    lines = [line.split("|") for line in (out / "stable_ranks.md").read_text().split("\n\n")[0].splitlines()[2:]]
    assert [line[3].strip() for line in lines] == names and all(float(line[4]) >= 1 for line in lines)


class Flat(Cumulated):
    def attention_parts(self, x):
        return AttentionParts(*[x.unflatten(2, (2, -1)).transpose(1, 2)] * 3, 1.0)


@pytest.mark.parametrize(
    ("mixer", "message"),
    [(Cumulated, "there is nothing to measure"), (Flat, "attention_parts: .* q \\[.* shapes")],
)
def test_a_mixer_that_cannot_be_measured_is_refused(own, tmp_path, mixer, message):
    options = own("mixer/mine", f"name: mine\n_target_: {mixer.__module__}.{mixer.__name__}\n")
    results = f"results_dir={tmp_path / 'results'}"
    ran("task=icr", "mixer=mine", *TINY, *KEPT, "optimizer.lr=0.01", results, *options)
    (folder,) = (tmp_path / "results" / "runs").iterdir()
    assert re.search(message, refusal("analyse", str(folder), *options))
