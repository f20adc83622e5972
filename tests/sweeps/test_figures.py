"""Figures: their texts can be read, they show the numbers of the tables, and they hide no gap."""

import fakes
import numpy as np
import pytest
from figure_texts import assert_legible, legend_texts, lines_of, points_of

from mixerlab.records.files import RECORD_FILE, read_metrics, read_record, run_folder, write_metrics, write_record
from mixerlab.records.names import MIXERS
from mixerlab.sweeps.figures.by_task import by_task
from mixerlab.sweeps.figures.curves import run_curves, training_curves
from mixerlab.sweeps.figures.difficulty import difficulty, harder_set
from mixerlab.sweeps.figures.heat_map import heat_map
from mixerlab.sweeps.figures.scores import Scores
from mixerlab.sweeps.figures.sheet import PANEL_TITLE, Sheet, text_width
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.figures.swept import learning_rates, score_by_key, score_by_size
from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.columns import Column

ATTN, GDN = Column("attn"), Column("gdn")


def scores_of(results, width=None):
    frame = fakes.frame_of(results)
    return Scores(frame, best_per_cell(frame, "official"), "official", width)


def all_figures(scores, results):
    keys = {key: None for column in scores.look for key, _ in column.values}
    made = [draw(scores) for draw in (by_task, score_by_size, heat_map, difficulty, learning_rates)]
    return [*made, *(score_by_key(scores, key) for key in keys), training_curves(scores, results)]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Three mixers on two tasks: of the setting seq_len-512, parallax has no score and novel no run."""
    results = tmp_path_factory.mktemp("results")
    for mixer, top in (("attn", 0.9), ("parallax", 0.95), ("novel", 0.7)):
        fakes.add_run(results, [0.3, top, 0.5], mixer=mixer)
        fakes.add_run(results, [0.2, top - 0.1, 0.4], mixer=mixer, setting="seq_len-256")
        fakes.add_run(results, [0.6, 0.5, "diverged"], mixer=mixer, task="mem")
    fakes.add_run(results, [0.2, 0.6, 0.4], mixer="attn", setting="seq_len-512")
    fakes.add_run(results, ["diverged"] * 3, mixer="parallax", setting="seq_len-512")
    return results


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [3.25, None])
def test_every_figure_has_the_width_of_its_column_and_no_text_over_another(results, width):
    figures = [figure for figure in all_figures(scores_of(results, width), results) if figure]
    assert len(figures) > 5
    for figure in figures:
        assert figure.get_size_inches()[0] == (width or 6.75)
        assert_legible(figure)


def test_titles_are_no_wider_than_their_panels():
    titles = [f"icr, length 24, examples 256: {measure}" for measure in ("COR", "gate", "|rho|")]
    sheet = Sheet(None, titles * 2, narrowest=0.9)
    lines = [line for panel in sheet.panels for line in panel.get_title().split("\n")]
    assert len(lines) > len(titles * 2) and all(text_width(line, PANEL_TITLE) <= sheet.panel_width for line in lines)


def test_seeds_of_one_setting_are_dots_and_those_of_a_mean_an_interval(tmp_path):
    for setting, scores in (("baseline", [0.2, 0.9, 0.95]), ("seq_len-256", [0.1, 0.2, 0.9])):
        fakes.add_run(tmp_path, scores, lr=1e-3, seed=[0, 1, 2], setting=setting)
    scores = scores_of(tmp_path)
    (alone,) = difficulty(scores).axes
    assert {y for line in alone.lines if line.get_label() == "seed" for y in line.get_ydata()} == {0.1, 0.2, 0.9, 0.95}
    (panel,) = by_task(scores).axes
    lines = {line.get_label(): list(line.get_ydata()) for line in panel.lines}
    assert "seed" not in lines and len(lines["_interval"]) == 2


def test_a_mean_that_misses_a_setting_is_hollow(tmp_path):
    fakes.add_run(tmp_path, [0.8], lr=1e-3)
    for setting in ("baseline", "seq_len-256"):
        fakes.add_run(tmp_path, [0.6], lr=1e-3, mixer="gdn", setting=setting)
    hollow = [bar for bar in by_task(scores_of(tmp_path)).axes[0].patches if bar.get_facecolor() == (1, 1, 1, 1)]
    assert [bar.get_height() for bar in hollow] == [0.8]


@pytest.mark.parametrize(("least", "ends", "of_bars"), [(0.1, (0.08, 0.22), 0.22), (0.9, (0.88, 1.06), 1.06)])
def test_an_axis_of_accuracies_is_as_long_as_they_need(tmp_path, least, ends, of_bars):
    for number, setting in enumerate(("baseline", "seq_len-256")):
        fakes.add_run(tmp_path, [least + 0.1 * number], lr=1e-3, setting=setting)
    fakes.add_run(tmp_path, [least + 0.1], lr=1e-3, mixer="gdn")
    scores = scores_of(tmp_path)
    (panel,), (bars,) = difficulty(scores).axes, by_task(scores).axes
    assert ends[0] < panel.get_ylim()[0] < least and least + 0.1 < panel.get_ylim()[1] < ends[1]
    assert bars.get_ylim()[0] < 0 and bars.get_ylim()[1] <= of_bars
    assert all(0 <= tick <= 1 for tick in panel.get_yticks())


def test_one_colour_and_marker_for_each_mixer():
    known = styles(map(Column, MIXERS))
    more = styles([*map(Column, MIXERS), Column("novel"), Column("another")])
    assert {column: more[column] for column in known} == known
    assert styles([Column("novel")], among=more)[Column("novel")] == more[Column("novel")]
    fifteen = styles([*map(Column, MIXERS), *(Column(f"mixer{i}") for i in range(10))]).values()
    assert len({style.colour for style in fifteen}) == len({style.marker for style in fifteen}) == 15
    widths = [Column(mixer, (("model.d_model", width),)) for mixer in MIXERS for width in ("64", "128", "256")]
    shades = styles(widths)
    assert shades[widths[1]].colour == known[ATTN].colour.lower()
    assert len({style.colour for style in shades.values()}) == 15


def test_difficulty_puts_the_baseline_at_its_value(results):
    figure = difficulty(scores_of(results))
    (panel,) = figure.axes  # mem has no axis here, icr has one
    look = scores_of(results).look
    assert (panel.get_title(), panel.get_xlabel(), panel.get_xscale()) == ("icr", "length (tokens)", "log")
    assert points_of(panel, look[ATTN]) == {(128, 0.9): False, (256, 0.8): False, (512, 0.6): False}
    crosses = [line for line in panel.lines if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses] == [[512], [512]]  # of parallax and novel, above the panel
    assert "no score" in legend_texts(figure)


def test_difficulty_departs_from_sizes_of_ones_own(tmp_path):
    for hops, accuracy in ((1, 0.9), (2, 0.5)):
        setting = "num_train_examples=3200" + f",hops={hops}" * (hops > 1)
        fakes.add_run(tmp_path, [accuracy], lr=1e-3, task="hops", setting=setting, hops=hops, num_train_examples=3200)
    scores = scores_of(tmp_path)
    (panel,) = difficulty(scores).axes
    assert points_of(panel, scores.look[ATTN]).keys() == {(1, 0.9), (2, 0.5)} and panel.get_xlabel() == "hops"


def test_sizes_that_all_settings_share_hide_no_axis(tmp_path):
    for name, size, accuracy in (("", 16, 0.9), ("vocab_size=32,", 32, 0.5)):
        setting = f"{name}num_train_examples=512"
        fakes.add_run(tmp_path, [accuracy], lr=1e-3, setting=setting, vocab_size=size, num_train_examples=512)
    scores = scores_of(tmp_path)
    (panel,) = difficulty(scores).axes
    assert points_of(panel, scores.look[ATTN]).keys() == {(16, 0.9), (32, 0.5)}
    assert (panel.get_title(), panel.get_xlabel()) == ("icr, examples 512", "vocabulary size")


def test_the_harder_set_has_a_panel_for_each_task_with_its_levels(tmp_path):
    for task in ("icr_challenge", "sc_challenge"):
        for level, vocabulary, accuracy in (("128-512", 128, 0.9), ("256-1024", 256, 0.2)):
            scores, sizes = [accuracy, accuracy + 0.1], {"chance": 1 / 8}
            fakes.add_run(
                tmp_path, scores, sizes, lr=1e-3, seed=[0, 1], task=task, setting=level, vocab_size=vocabulary
            )
    scores = scores_of(tmp_path)
    figure = harder_set(scores)
    assert [panel.get_title() for panel in figure.axes] == ["icr", "sc"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["128-512", "256-1024"]
    assert [y for _, y in points_of(figure.axes[0], scores.look[ATTN]) if y in (0.9, 1.0)]  # the seeds
    assert legend_texts(figure) == ["attn", "seed", "chance"] and difficulty(scores) is None


def test_learning_rates(results):
    scores = scores_of(results)
    figure = learning_rates(scores)
    icr, mem = figure.axes
    expected = {(5e-4, 0.7 / 3): False, (1e-3, 2.3 / 3): False, (5e-3, 1.3 / 3): False}
    assert [*points_of(icr, scores.look[ATTN])] == [pytest.approx(place) for place in expected]
    assert all(points_of(icr, scores.look[Column("parallax")]).values())  # it diverged at one setting
    assert [label.get_text() for label in icr.get_xticklabels()] == ["5e-4", "1e-3", "5e-3"]
    assert len([line for line in mem.lines if line.get_marker() == "x"]) == 3
    fakes_of_one_rate = scores.frame[scores.frame["lr"] == 1e-3]
    assert learning_rates(Scores(fakes_of_one_rate, scores.cells, "official")) is None


@pytest.mark.parametrize(
    ("key", "values", "joined"),
    [("optimizer.name", ("adamw", "muon"), False), ("model.d_model", (64, 256), True)],
)
def test_score_by_a_swept_key(tmp_path, key, values, joined):
    for mixer in ("attn", "gdn"):
        for value, accuracy in zip(values, (0.5, 0.7), strict=True):
            fakes.add_run(tmp_path, [accuracy], lr=1e-3, mixer=mixer, changed={key: value})
    scores = scores_of(tmp_path)
    figure = score_by_key(scores, key)
    (panel,) = figure.axes
    places = [float(value) for value in values] if joined else [0.0, 1.0]
    style = styles([ATTN, GDN])[ATTN]
    assert list(points_of(panel, style)) == list(zip(places, (0.5, 0.7), strict=True))
    assert [label.get_text() for label in panel.get_xticklabels()] == list(map(str, values))
    (line,) = [line for line in panel.lines if line.get_color() == style.colour and len(line.get_xdata()) == 2]
    assert (line.get_linestyle() == "-") == joined
    assert legend_texts(figure)[:2] == ["attn", "gdn"]


def test_score_by_size(tmp_path):
    for mixer, size, accuracy in (("attn", 4096, 0.9), ("gdn", 1024, 0.7)):
        fakes.add_run(tmp_path, [accuracy], {"state_size": size, "num_params": 10 * size}, mixer=mixer, lr=1e-3)
    scores = scores_of(tmp_path)
    state, parameters = score_by_size(scores).axes
    assert points_of(state, scores.look[ATTN]) == {(4096, 0.9): False}
    assert points_of(parameters, scores.look[GDN]) == {(10240, 0.7): False}


def test_a_column_beside_few_others_is_as_large_as_one_among_them(tmp_path):
    """Sizes fell with all columns, down to less than nothing, though few of them shared a place."""
    for mixer, size in zip(
        ("attn", "parallax", "gdn", "mamba", "mesa", "mine"), (4096,) * 4 + (1024, 512), strict=True
    ):
        fakes.add_run(tmp_path, [0.5], {"state_size": size}, mixer=mixer, lr=1e-3)
    state = score_by_size(scores_of(tmp_path)).axes[0]
    sizes = [line.get_markersize() for line in state.lines if line.get_marker() not in ("None", "", None)]
    assert len(sizes) == 6 and min(sizes) > max(sizes) / 3


@pytest.mark.parametrize(("tasks", "means"), [(("icr", "mine"), ["icr", "mine"]), (("icr", "ncr", "mine"), ["Avg"])])
def test_parameters_are_on_the_mean_over_tasks_or_on_each(tmp_path, tasks, means):
    for task in tasks:
        for mixer in ("attn", "gdn"):
            fakes.add_run(tmp_path, [0.5], mixer=mixer, task=task, lr=1e-3)
    scores = scores_of(tmp_path)
    by_size = score_by_size(scores)
    assert [panel.get_title() for panel in by_size.axes if panel.get_xlabel() == "parameters"] == means
    for figure in (by_size, by_task(scores)):  # what the mean leaves out is in the caption
        assert ("without mine" in figure.get_label()) == (means == ["Avg"])


def test_heat_map(results):
    icr, mem = heat_map(scores_of(results)).axes
    (picture,) = icr.images
    shown = np.ma.filled(picture.get_array(), np.nan)
    assert shown == pytest.approx(np.array([[0.9, 0.8, 0.6], [0.95, 0.85, np.nan], [0.7, 0.6, np.nan]]), nan_ok=True)
    assert [label.get_text() for label in icr.get_yticklabels()] == ["attn", "parallax", "novel"]
    assert [label.get_text() for label in icr.get_xticklabels()] == ["baseline", "length 256", "length 512"]
    assert mem.texts[0].get_text() == ".60"


def test_training_curves_show_the_best_replica(results):
    scores = scores_of(results)
    figure = training_curves(scores, results)
    accuracy, mem = figure.axes
    for style, top in zip(scores.look.values(), (0.9, 0.95, 0.7), strict=True):
        (line,) = lines_of(accuracy, style.colour)
        assert len(line) == 12 and line[-1] == pytest.approx(top * (1 - np.exp(-11 / 3)))
    assert accuracy.lines[0].get_xdata()[0] == 1  # as in progress: the first epoch is 1
    assert accuracy.get_ylabel() == "accuracy on test"
    assert (accuracy.get_title(), mem.get_title()) == ("icr", "mem")


def test_training_curves_name_the_scores_without_a_curve(tmp_path):
    """Not the cells without a score, which are many where mixers were trained on different tasks."""
    fakes.add_run(tmp_path, [0.3, 0.9, 0.5])
    run_id = fakes.add_run(tmp_path, [0.3, 0.9, 0.5], mixer="gdn", task="mem")
    scores = scores_of(tmp_path)
    assert "no curve" not in training_curves(scores, tmp_path).get_label()
    (run_folder(tmp_path, run_id) / "metrics.csv").unlink()
    assert training_curves(scores, tmp_path).get_label().endswith("; no curve of gdn on mem")
    assert training_curves(scores, tmp_path / "elsewhere") is None


def write_curves(folder, rows):
    """Writes other metrics, and the record with their digest."""
    record = read_record(folder)
    write_metrics(folder, rows)
    (folder / RECORD_FILE).unlink()
    write_record(folder, record)


def test_the_curves_of_a_run_are_legible(tmp_path):
    """Also if the ticks of its loss need two decimals where a panel has room for nine."""
    folder = run_folder(tmp_path, fakes.add_run(tmp_path, [0.3, 0.9, 0.5]))
    rows = read_metrics(folder).query("epoch < 4")
    write_curves(folder, rows.assign(train_loss=3.17 - 0.618 * rows["epoch"]))
    assert_legible(run_curves(folder))


def test_a_rate_that_diverged_does_not_flatten_the_others(tmp_path):
    folder = run_folder(tmp_path, fakes.add_run(tmp_path, [0.3, 0.9, "diverged"]))
    rows = read_metrics(folder)
    write_curves(folder, rows.assign(train_loss=rows["train_loss"].where(rows["replica"] != 2, 1e6)))
    loss, *_ = run_curves(folder).axes
    assert loss.get_ylim()[1] < 2 * rows.loc[rows["replica"] != 2, "train_loss"].max()


def keep_epochs(results, run_id, replica, epochs):
    """Leaves only these of the replica's metrics."""
    folder = run_folder(results, run_id)
    rows = read_metrics(folder)
    write_curves(folder, rows[(rows["replica"] != replica) | (rows["epoch"] < epochs)])


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
    assert len(figure.axes[0].collections) == 1 and "mean and range over seeds" in figure.get_label()
    *_, test = run_curves(run_folder(tmp_path, run_id)).axes
    ends = [line.get_ydata()[-1] for line in test.lines]
    assert ends == pytest.approx([0.3 * (1 - np.exp(-11 / 3)), (frozen + ended) / 2, 0.5 * (1 - np.exp(-11 / 3))])
