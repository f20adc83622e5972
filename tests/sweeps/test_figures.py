"""What holds for figures of every kind: their texts can be read, and each mixer has its colour and marker."""

from functools import partial

import fakes
import pytest
from figure_texts import assert_legible

from mixerlab.sweeps.figures.axis import difficulty, learning_rates, lengths
from mixerlab.sweeps.figures.canvas import ONE_COLUMN, TWO_COLUMNS, Layout, Sheet, save
from mixerlab.sweeps.figures.size import accuracy_by_size
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.figures.table import bars, heat_map
from mixerlab.sweeps.figures.training_curves import training_curves
from mixerlab.sweeps.tables.collect import best_per_cell, collect
from mixerlab.sweeps.tables.tables import setting_table, task_table


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
    ("number", "width", "bare"),
    [
        (2, 3.25, False),
        (2, 5.5, True),
        pytest.param(5, 3.0, True, marks=pytest.mark.slow),
        pytest.param(5, 20.0, False, marks=pytest.mark.slow),
        pytest.param(15, 3.0, False, marks=pytest.mark.slow),
        pytest.param(15, 3.25, False, marks=pytest.mark.slow),
        pytest.param(15, 5.5, False, marks=pytest.mark.slow),
        pytest.param(15, 6.75, False, marks=pytest.mark.slow),
    ],
)
def test_no_text_lies_over_another(tmp_path, number, width, bare):
    layout = Layout(width, bare)
    fakes.add_many_mixers(tmp_path, number, seeds=(0, 1))
    frame = collect(tmp_path)
    cells = best_per_cell(frame)
    table = task_table(cells)
    for figure in (
        bars(table, "Accuracy by task", "official", layout),
        accuracy_by_size(table, cells, "official", layout),
        heat_map(setting_table(cells), "official", layout),
        difficulty(frame, cells, "official", layout),
        lengths(frame, cells, "official", layout),
        learning_rates(frame, cells, "official", layout),
        training_curves(tmp_path, cells, "official", layout),
    ):
        assert figure.get_size_inches()[0] == width
        assert_legible(figure)


def test_a_figure_has_as_many_panels_in_a_line_as_fit():
    layouts = (Layout(3.0), ONE_COLUMN, Layout(5.5), TWO_COLUMNS)
    assert [(layout.width, Sheet(layout).most) for layout in layouts] == [(3.0, 2), (3.25, 2), (5.5, 3), (6.75, 4)]


@pytest.mark.parametrize("width", [-1.0, 0.0, 2.9, 21.0, float("inf"), float("nan")])
def test_a_width_that_no_figure_can_have(width):
    with pytest.raises(ValueError, match=rf"cannot be {width:g} inches wide: give 3 to 20, such as 5\.5"):
        Layout(width)


def test_a_bare_figure_is_lower_by_its_heading(results, frame, cells):
    for draw in (
        partial(bars, task_table(cells), "Accuracy by task", "official"),
        partial(difficulty, frame, cells, "official"),
        partial(training_curves, results, cells, "official"),
    ):
        whole, bare = draw(), draw(layout=Layout(bare=True))
        assert len(whole.texts) == 2 and bare.texts == [] and bare.get_suptitle() == ""
        title, subtitle = (text.get_text().replace("\n", " ") for text in whole.texts)
        assert bare.get_label() == whole.get_label() == f"{title}: {subtitle}"
        lower = whole.get_size_inches()[1] - bare.get_size_inches()[1]
        assert lower == pytest.approx((1.2 * 8 + 1.25 * 6.5) / 72)


def test_without_a_subtitle_the_labels_have_the_unit_of_lengths(frame, cells):
    labels = [
        [panel.get_xlabel() for panel in lengths(frame, cells, "official", Layout(bare=bare)).axes]
        for bare in (False, True)
    ]
    assert labels == [["sequence length"], ["sequence length (tokens)"]]


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
