"""The figures of training: the curves of the best replicas of a sweep, and all curves of one run."""

import fakes
import numpy as np
import pandas as pd
import pytest
from figure_texts import legend_texts, lines_of, painted

from mixerlab.records.files import METRICS_FILE, RECORD_FILE, read_record, run_folder, write_record
from mixerlab.sweeps.figures.curves import run_curves, training_curves
from mixerlab.sweeps.figures.points import Scores
from mixerlab.sweeps.figures.sheet import TWO_COLUMNS, caption_of
from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.collect import collect
from mixerlab.sweeps.tables.swept import spread_out


def scores_of(results, selection="official"):
    frame = spread_out(collect(results))
    return Scores(frame, best_per_cell(frame, selection), selection, TWO_COLUMNS)


def change_metrics(results, run_id, change):
    """Writes what `change` makes of the metrics, and a record with their digest."""
    folder = run_folder(results, run_id)
    change(pd.read_csv(folder / METRICS_FILE)).to_csv(folder / METRICS_FILE, index=False)
    record = read_record(folder)
    (folder / RECORD_FILE).unlink()
    write_record(folder, record)


def keep_epochs(results, run_id, replica, epochs):
    change_metrics(results, run_id, lambda rows: rows[(rows["replica"] != replica) | (rows["epoch"] < epochs)])


def test_training_curves_show_the_best_replica(tmp_path):
    fakes.add_three_mixers(tmp_path)
    scores = scores_of(tmp_path)
    figure = training_curves(scores, tmp_path)
    accuracy, loss, mem, _ = figure.axes[0], figure.axes[2], figure.axes[1], figure.axes[3]
    for style, top in zip(scores.look.values(), (0.9, 0.95, 0.7), strict=True):
        (line,) = lines_of(accuracy, style.colour)
        assert len(line) == 12 and line[-1] == pytest.approx(top * (1 - np.exp(-11 / 3)))
    assert accuracy.lines[0].get_xdata()[0] == 1  # as in progress: the first epoch is 1
    assert loss.get_yscale() == "log" and loss.lines[0].get_ydata()[0] == pytest.approx(3)
    assert (accuracy.get_ylabel(), loss.get_ylabel()) == ("accuracy on test", "training loss (nats)")
    assert (accuracy.get_title(), mem.get_title()) == ("icr", "mem")


def test_training_curves_are_of_the_setting_that_most_mixers_have_and_say_who_has_none(tmp_path):
    fakes.add_run(tmp_path, [0.5], lr=1e-3)
    for mixer in ("attn", "gdn"):
        fakes.add_run(tmp_path, [0.5], lr=1e-3, mixer=mixer, setting="seq_len-256")
    fakes.add_run(tmp_path, ["failed"], lr=1e-3, mixer="mesa")
    figure = training_curves(scores_of(tmp_path, "clean"), tmp_path)
    assert figure.axes[0].get_title() == "icr, length 256"
    assert figure.axes[0].get_ylabel() == "accuracy on val"
    assert caption_of(figure).endswith("; no curve on icr, length 256: mesa")


def test_a_curve_of_one_epoch_is_seen(tmp_path):
    run_id = fakes.add_run(tmp_path, [0.9], lr=1e-3)
    keep_epochs(tmp_path, run_id, replica=0, epochs=1)
    scores = scores_of(tmp_path)
    figure = training_curves(scores, tmp_path)
    (style,) = scores.look.values()
    assert all(painted(figure, panel, style.colour) > 10 for panel in figure.axes)


def test_a_frozen_seed_counts_until_the_last_one_ends(tmp_path):
    """Its accuracy stays what it was; without it the mean would fall to that of the other."""
    run_id = fakes.add_run(tmp_path, [0.3, 0.9, 0.5, 0.3, 0.7, "diverged"], seed=[0, 1])
    keep_epochs(tmp_path, run_id, replica=1, epochs=4)  # 0.9, frozen
    keep_epochs(tmp_path, run_id, replica=5, epochs=4)  # diverged
    frozen, ended = 0.9 * (1 - np.exp(-3 / 3)), 0.7 * (1 - np.exp(-11 / 3))
    scores = scores_of(tmp_path)
    figure = training_curves(scores, tmp_path)
    (line,) = lines_of(figure.axes[0], next(iter(scores.look.values())).colour)
    assert len(line) == 12 and line[-1] == pytest.approx((frozen + ended) / 2)
    assert len(figure.axes[0].collections) == 1 and "mean and range over seeds" in caption_of(figure)
    *_, test = run_curves(run_folder(tmp_path, run_id)).axes
    ends = [line.get_ydata()[-1] for line in test.lines]
    assert ends == pytest.approx([0.3 * (1 - np.exp(-11 / 3)), (frozen + ended) / 2, 0.5 * (1 - np.exp(-11 / 3))])


def test_the_figure_of_a_run_shows_which_rates_diverged(tmp_path):
    """With a curve or without one, and of how many seeds."""
    scores = [0.3, "diverged", 0.5, 0.4, 0.6, "diverged"]
    run_id = fakes.add_run(tmp_path, scores, seed=[0, 1], setting="seq_len-256,vocab_size-8")
    columns = ["train_loss", "val_accuracy", "test_accuracy"]

    def lose(rows):
        rows.loc[rows["replica"].isin([1, 5]), columns] = np.nan
        return rows

    change_metrics(tmp_path, run_id, lose)
    figure = run_curves(run_folder(tmp_path, run_id))
    assert caption_of(figure).startswith("attn on icr, length 256, vocabulary 8: ")
    assert legend_texts(figure) == ["lr 5e-4", "lr 1e-3 (1 of 2 diverged)", "lr 5e-3 (1 of 2 diverged)"]
    assert [panel.get_ylabel() for panel in figure.axes] == [
        "training loss (nats)",
        "accuracy on val",
        "accuracy on test",
    ]


def test_a_run_without_its_metrics_is_named(tmp_path):
    run_id = fakes.add_run(tmp_path, [0.9], lr=1e-3)
    (run_folder(tmp_path, run_id) / METRICS_FILE).unlink()
    with pytest.raises(ValueError, match=run_id):
        run_curves(run_folder(tmp_path, run_id))
