"""The figures of a table: bars and the heat map."""

import fakes
import numpy as np
import pytest
from figure_texts import crosses, legend_texts
from matplotlib.colors import to_hex

from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.figures.table import bars, heat_map
from mixerlab.sweeps.tables.collect import best_per_cell, collect
from mixerlab.sweeps.tables.tables import setting_table, task_table


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return fakes.add_three_mixers(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def cells(results):
    return best_per_cell(collect(results))


def test_bars(cells):
    figure = bars(task_table(cells), "Tasks", "official", chances={("icr",): 0.125})
    (axes,) = figure.axes
    look = styles(["attn", "parallax", "novel"])
    # icr: parallax and novel miss seq_len-512.
    heights = {
        "attn": [(0.9 + 0.8 + 0.6) / 3, 0.6, (2.3 / 3 + 0.6) / 2],
        "parallax": [(0.95 + 0.85) / 2, 0.6, 0.75],
        "novel": [(0.7 + 0.6) / 2, 0.6, 0.625],
    }
    drawn_bars = {mixer: [c.patches[0] for c in axes.containers if c.get_label() == mixer] for mixer in heights}
    for mixer, expected in heights.items():
        assert [bar.get_height() for bar in drawn_bars[mixer]] == pytest.approx(expected)
        complete = [mixer == "attn", True, mixer == "attn"]
        faces = [look[mixer].colour if whole else "#FFFFFF" for whole in complete]
        assert [to_hex(bar.get_facecolor()).upper() for bar in drawn_bars[mixer]] == faces
        assert {bar.get_hatch() or "" for bar in drawn_bars[mixer]} == {look[mixer].hatch}
    assert crosses(axes) == []
    assert [label.get_text() for label in axes.get_xticklabels()] == ["icr", "mem", "Avg"]
    assert figure.texts[1].get_text() == "learning rate and checkpoint chosen on test; one seed"
    assert legend_texts(figure) == ["attn", "parallax", "novel", "incomplete mean", "chance"]
    lefts = sorted(bar.get_x() for group in drawn_bars.values() for bar in group)
    assert np.diff(lefts).min() > 0.2  # no bar covers another
    (chance,) = [line for line in axes.lines if set(line.get_ydata()) == {0.125}]
    assert chance.get_xdata() == pytest.approx([-0.45, 0.45])


def test_a_bar_whose_mean_lacks_seeds_is_hollow(tmp_path):
    for mixer, scores in (("attn", [0.8, 0.7]), ("gdn", [0.9, "diverged"])):
        fakes.add_run(tmp_path, scores, lr=1e-3, seed=[0, 1], mixer=mixer)
    figure = bars(setting_table(best_per_cell(collect(tmp_path))), "Settings", "official")
    assert "one seed" not in figure.texts[1].get_text()
    faces = [to_hex(container.patches[0].get_facecolor()).upper() for container in figure.axes[0].containers]
    assert faces == [styles(["attn", "gdn"])["attn"].colour, "#FFFFFF"]
    assert legend_texts(figure) == ["attn", "gdn", "incomplete mean"]


def test_bars_of_settings_cross_what_is_missing(cells):
    figure = bars(setting_table(cells), "Settings", "official")
    (axes,) = figure.axes
    assert len(axes.containers) == 10
    assert len(crosses(axes)) == 2
    assert [line.get_xdata()[0] for line in crosses(axes)] == pytest.approx([2.0, 2.0 + 0.88 / 3])
    assert legend_texts(figure)[-1] == "no score"


def test_heat_map(cells):
    figure = heat_map(setting_table(cells), "official")
    (panel,) = figure.axes
    (mesh,) = panel.collections
    shown = np.ma.filled(mesh.get_array(), np.nan)
    assert shown.shape == (4, 3) and shown[0] == pytest.approx([0.9, 0.95, 0.7])
    assert [label.get_text() for label in panel.get_yticklabels()][:2] == ["icr baseline", "icr seq_len-256"]
    assert len(crosses(panel)) == 2 and panel.texts[0].get_text() == ".90"
