"""What holds for figures of every kind: their texts can be read, and each mixer has its colour and marker."""

import fakes
import pytest
from figure_texts import assert_legible

from mixerlab.sweeps.collect import best_per_cell, collect
from mixerlab.sweeps.figures.axis import difficulty, learning_rates, lengths
from mixerlab.sweeps.figures.canvas import save
from mixerlab.sweeps.figures.size import accuracy_by_size
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.figures.table import bars, heat_map
from mixerlab.sweeps.figures.training_curves import training_curves
from mixerlab.sweeps.tables import setting_table, task_table


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return fakes.add_three_mixers(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def frame(results):
    return collect(results)


@pytest.fixture(scope="module")
def cells(frame):
    return best_per_cell(frame)


@pytest.mark.parametrize(
    ("number", "columns"), [(2, 1), *(pytest.param(n, c, marks=pytest.mark.slow) for n in (5, 15) for c in (1, 2))]
)
def test_no_text_lies_over_another(tmp_path, number, columns):
    fakes.add_many_mixers(tmp_path, number, seeds=(0, 1))
    frame = collect(tmp_path)
    cells = best_per_cell(frame)
    table = task_table(cells)
    for figure in (
        bars(table, "Accuracy by task", "official", columns),
        accuracy_by_size(table, cells, "official", columns),
        heat_map(setting_table(cells), "official", columns),
        difficulty(frame, cells, "official", columns),
        lengths(frame, cells, "official", columns),
        learning_rates(frame, cells, "official", columns),
        training_curves(tmp_path, cells, "official", columns),
    ):
        assert figure.get_size_inches()[0] == {1: 3.25, 2: 6.75}[columns]
        assert_legible(figure)


def test_one_colour_and_marker_per_mixer_in_every_figure(results, frame, cells):
    expected = {mixer: (style.colour, style.marker) for mixer, style in styles(cells["mixer"]).items()}
    for figure in (
        difficulty(frame, cells, "official"),
        learning_rates(frame, cells, "official"),
        training_curves(results, cells, "official"),
    ):
        (legend,) = figure.legends
        shown = {h.get_label(): (h.get_color(), h.get_marker()) for h in legend.legend_handles}
        assert {mixer: shown[mixer] for mixer in expected} == expected


def test_error_bars_are_explained_where_there_are_any(tmp_path):
    for mixer in ("attn", "gdn"):
        fakes.add_run(tmp_path, [0.3, 0.5, 0.4, 0.6], mixer=mixer, lr=[1e-3, 5e-3], seed=[0, 1])
    for seeds, told in (((0, 1), True), ((0,), False)):
        frame = collect(tmp_path)
        frame = frame[frame["seed"].isin(seeds)]
        cells = best_per_cell(frame)
        for figure in (
            bars(task_table(cells), "Accuracy by task", "official"),
            accuracy_by_size(task_table(cells), cells, "official"),
            learning_rates(frame, cells, "official"),
        ):
            under = figure.texts[1].get_text().replace("\n", " ")
            assert under.endswith("; error bars: 95% Student t intervals over seeds, cut to [0, 1]") == told


def test_what_a_single_mixer_or_learning_rate_leaves_out(tmp_path):
    """One point in a panel compares nothing."""
    fakes.add_run(tmp_path, [0.9], lr=1e-3)
    frame = collect(tmp_path)
    cells = best_per_cell(frame)
    assert accuracy_by_size(task_table(cells), cells, "official") is None
    assert learning_rates(frame, cells, "official") is None
    figure = bars(task_table(cells), "Accuracy by task", "official")
    (panel,) = figure.axes
    assert panel.get_position().width * figure.get_size_inches()[0] < 1
    assert_legible(figure)


def test_saved_as_picture_and_as_pdf_even_if_empty(tmp_path):
    nothing = best_per_cell(collect(tmp_path, fakes.by_run_id(fakes.config())))
    paths = save(training_curves(tmp_path, nothing, "official"), tmp_path / "2605.29157", ("png", "pdf"))
    assert [path.name for path in paths] == ["2605.29157.png", "2605.29157.pdf"]  # a dot is no suffix
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert paths[1].read_bytes().startswith(b"%PDF")
