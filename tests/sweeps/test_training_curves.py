"""The figures of training: the curves of the best replicas of a sweep, and all curves of one run."""

import fakes
import numpy as np
import pandas as pd
import pytest
from figure_texts import assert_legible, painted
from matplotlib.figure import Figure

from mixerlab.records.files import (
    METRICS_FILE,
    read_metrics,
    read_record,
    run_folder,
    write_metrics,
)
from mixerlab.sweeps.figures import ticks
from mixerlab.sweeps.figures.run import run_curves
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.figures.training_curves import training_curves
from mixerlab.sweeps.tables.collect import best_per_cell, collect
from mixerlab.sweeps.tables.keys import spread_out


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return fakes.add_three_mixers(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def cells(results):
    return best_per_cell(collect(results))


def keep_epochs(results, run_id, replica, epochs):
    folder = run_folder(results, run_id)
    path = folder / METRICS_FILE
    metrics = pd.read_csv(path)
    metrics[(metrics["replica"] != replica) | (metrics["epoch"] < epochs)].to_csv(path, index=False)
    fakes.replace_record(folder, read_record(folder))  # with the digest of these metrics


def test_training_curves_show_the_best_replica(results, cells):
    figure = training_curves(results, cells, "official")
    accuracy, loss, accuracy_mem, _ = figure.axes
    look = styles(["attn", "parallax", "novel"])
    lines = [line for line in accuracy.lines if line.get_label() in look]
    assert [line.get_color() for line in lines] == [style.colour for style in look.values()]
    ends = [line.get_ydata()[-1] for line in lines]
    assert ends == pytest.approx([top * (1 - np.exp(-11 / 3)) for top in (0.9, 0.95, 0.7)])
    assert [line.get_xdata()[0] for line in lines] == [1, 1, 1]  # as in progress: the first epoch is 1
    assert lines[0].get_xdata()[-1] == 12
    assert loss.get_yscale() == "log"
    assert loss.lines[0].get_ydata()[0] == pytest.approx(3)
    assert (accuracy.get_ylabel(), loss.get_ylabel()) == ("accuracy on test", "training loss (nats)")
    assert accuracy_mem.get_title() == "mem"
    assert any(text.get_text().startswith("baselines; ") for text in figure.texts)


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_curve_of_one_epoch_is_seen(tmp_path, epochs):
    run_id = fakes.add_run(tmp_path, [0.3, 0.9, 0.5])
    keep_epochs(tmp_path, run_id, replica=1, epochs=epochs)
    figure = training_curves(tmp_path, best_per_cell(collect(tmp_path)), "official")
    colour = styles(["attn"])["attn"].colour
    assert [painted(figure, panel, colour) > 10 for panel in figure.axes] == [True, True]
    assert all(tick.is_integer() for panel in figure.axes for tick in panel.get_xticks())


def test_the_figure_of_a_run(tmp_path):
    run_id = fakes.add_run(tmp_path, [0.3, 0.9, 0.5], setting="seq_len-256,vocab_size-8")
    keep_epochs(tmp_path, run_id, replica=0, epochs=1)
    figure = run_curves(run_folder(tmp_path, run_id))
    assert figure.get_suptitle() == "attn on icr, seq_len-256, vocab_size-8"
    for panel in figure.axes:
        single, *others = (line for line in panel.lines if len(line.get_xdata()))
        assert list(single.get_xdata()) == [1] and painted(figure, panel, single.get_color()) > 10
        assert [line.get_marker() for line in others] == ["None", "None"]


@pytest.mark.parametrize("lowest", [1e-6, 1e-2, 1.2])
def test_a_loss_axis_has_ticks_at_any_range(lowest):
    figure = Figure()
    panel = figure.add_subplot()
    panel.set_yscale("log")
    panel.set_ylim(lowest, 2.5)
    ticks.loss_ticks(panel)
    figure.draw_without_rendering()
    seen = [label.get_text() for label in panel.get_yticklabels() if lowest <= label.get_position()[1] <= 2.5]
    assert 1 <= len(seen) <= 8 and all(seen)


def test_training_curves_say_who_has_none(tmp_path):
    fakes.add_run(tmp_path, [0.3, 0.9, 0.5], task="icr_challenge", setting="256-512")
    fakes.add_run(tmp_path, ["failed"] * 3, mixer="gdn", task="icr_challenge", setting="256-512")
    figure = training_curves(tmp_path, best_per_cell(collect(tmp_path)), "clean")
    accuracy = figure.axes[0]
    assert accuracy.get_title() == "icr_challenge 256-512"
    assert [text.get_text() for text in accuracy.texts] == ["no curve: gdn"]
    assert accuracy.get_ylabel() == "accuracy on val"


def test_training_curves_are_of_the_setting_that_most_mixers_have(tmp_path):
    fakes.add_run(tmp_path, [0.5], lr=[1e-3])
    for mixer in ("attn", "gdn", "mesa"):
        fakes.add_run(tmp_path, [0.5], lr=[1e-3], mixer=mixer, setting="seq_len-256", seq_len=256)
        for length in (64, 512):  # as many have these
            given = {"setting": f"seq_len-{length}", "seq_len": length}
            fakes.add_run(tmp_path, [0.5], lr=[1e-3], mixer=mixer, task="mem", **given)
    figure = training_curves(tmp_path, best_per_cell(collect(tmp_path)), "official")
    titles = [panel.get_title() for panel in figure.axes if panel.get_title()]
    assert titles == ["icr seq_len-256", "mem seq_len-64"]
    assert not any(panel.texts for panel in figure.axes)


def test_names_without_a_curve_are_counted_if_they_are_long(tmp_path):
    fakes.add_run(tmp_path, [0.5], lr=[1e-3])
    for width in (8, 16):
        fakes.add_run(tmp_path, ["diverged"], lr=[1e-3], mixer="gdn", changed={"mixer.a_long_name": width})
    swept = spread_out(collect(tmp_path))
    accuracy = training_curves(tmp_path, best_per_cell(swept.frame), "official").axes[0]
    assert [text.get_text() for text in accuracy.texts] == ["no curve of 2"]


def test_a_run_shows_which_rates_diverged(tmp_path):
    """With a curve or without one, and of how many seeds."""
    run_id = fakes.add_run(tmp_path, [0.3, "diverged", 0.5, 0.4, 0.6, "diverged"], seed=[0, 1])
    folder = run_folder(tmp_path, run_id)
    metrics = read_metrics(folder)
    scores = [name for name in metrics if name.startswith(("val_", "test_", "train_"))]
    metrics.loc[metrics["replica"].isin([1, 5]), scores] = np.nan
    write_metrics(folder, metrics)
    fakes.replace_record(folder, read_record(folder))  # with the digest of these metrics
    *_, test = run_curves(folder).axes
    labels = [text.get_text() for text in test.get_legend().get_texts()]
    assert [label.partition(" ")[2] for label in labels] == ["", "(1 of 2 diverged)", "(1 of 2 diverged)"]


def test_long_titles_fit(tmp_path):
    long = "num_train_examples=100000,seq_len=32,vocab_size=8,frac_noise=0.25,noise_vocab_size=128"
    for task in ("icr", "ncr", "fcr", "mem"):
        fakes.add_run(tmp_path, [0.3, 0.9, 0.5], task=task, setting=long)
    figure = training_curves(tmp_path, best_per_cell(collect(tmp_path)), "official")
    assert figure.axes[0].get_title() == "icr 100k training examples,\nseq_len=32, vocab_size=8,…"
    assert_legible(figure)


def test_several_seeds_are_one_line_with_a_band(tmp_path):
    fakes.add_run(tmp_path, [0.3, 0.9, 0.5, 0.3, 0.7, 0.5], seed=[0, 1])
    accuracy, _ = training_curves(tmp_path, best_per_cell(collect(tmp_path)), "official").axes
    line, _ = accuracy.lines  # and chance
    assert line.get_ydata()[-1] == pytest.approx(0.8 * (1 - np.exp(-11 / 3)))
    assert len(accuracy.collections) == 1


def test_a_frozen_seed_counts_until_the_last_one_ends(tmp_path):
    """Its accuracy stays what it was; without it the mean would fall to that of the other."""
    run_id = fakes.add_run(tmp_path, [0.3, 0.9, 0.5, 0.3, 0.7, "diverged"], seed=[0, 1])
    keep_epochs(tmp_path, run_id, replica=1, epochs=4)  # 0.9, frozen
    keep_epochs(tmp_path, run_id, replica=5, epochs=4)  # diverged
    frozen, ended = 0.9 * (1 - np.exp(-3 / 3)), 0.7 * (1 - np.exp(-11 / 3))
    accuracy, _ = training_curves(tmp_path, best_per_cell(collect(tmp_path)), "official").axes
    line, _ = accuracy.lines  # and chance
    assert len(line.get_xdata()) == 12 and line.get_ydata()[-1] == pytest.approx((frozen + ended) / 2)
    *_, test = run_curves(run_folder(tmp_path, run_id)).axes
    means = [line.get_ydata()[-1] for line in test.lines if len(line.get_xdata())]
    assert means == pytest.approx([0.3 * (1 - np.exp(-11 / 3)), (frozen + ended) / 2, 0.5 * (1 - np.exp(-11 / 3))])
