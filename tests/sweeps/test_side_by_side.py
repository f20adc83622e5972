"""Mixers whose intervals would lie on each other stand side by side along an axis."""

import fakes
import numpy as np
import pytest
from figure_texts import crosses, drawn, legend_texts

from mixerlab.records.names import MIXERS
from mixerlab.sweeps.figures.axis import accuracy_by_key, difficulty, learning_rates
from mixerlab.sweeps.tables.collect import best_per_cell, collect
from mixerlab.sweeps.tables.keys import spread_out
from mixerlab.sweeps.tables.tables import task_table


def test_at_each_rate_the_intervals_of_mixers_stand_side_by_side(tmp_path):
    for place, mixer in enumerate(MIXERS):
        scores = [0.5 + 0.02 * place + change for change in (0.0, 0.1, 0.2, 0.04, 0.14, 0.24)]
        fakes.add_run(tmp_path, scores, seed=[0, 1], mixer=mixer)
        fakes.add_run(tmp_path, scores[:3], mixer=mixer, task="mem")  # the last panel, without intervals
    frame = collect(tmp_path)
    figure = learning_rates(frame, best_per_cell(frame), "official")
    panel, unmoved = figure.axes
    assert all(list(drawn(unmoved, mixer)) == list(fakes.GRID) for mixer in MIXERS)
    assert [label.get_text() for label in panel.get_xticklabels()] == ["5e-4", "1e-3", "5e-3"]
    assert list(panel.get_xticks()) == list(fakes.GRID)
    lines = [drawn(panel, mixer) for mixer in MIXERS]
    for line, mean in zip(lines, (0.52, 0.54, 0.56, 0.58, 0.6), strict=True):
        assert list(line.values()) == pytest.approx([mean, mean + 0.1, mean + 0.2])
        factors = [x / rate for x, rate in zip(line, fakes.GRID, strict=True)]
        assert factors == pytest.approx([factors[0]] * 3) and 0.8 < factors[0] < 1.25
    low, high = panel.get_xlim()
    for number in range(3):
        places = [list(line)[number] for line in lines]
        assert np.prod(places) ** (1 / 5) == pytest.approx(fakes.GRID[number])
        assert np.diff(places).min() > 0 and low < places[0] and places[-1] < high
    bars = [line for line in panel.lines if line.get_label() == "_interval"]
    assert [sorted({x for x in bar.get_xdata() if not np.isnan(x)}) for bar in bars] == [list(line) for line in lines]
    under = figure.texts[1].get_text().replace("\n", " ")
    assert "; mixers side by side where error bars would overlap; error bars" in under


def test_mixers_at_one_rate_move_as_far_as_its_neighbours_allow(tmp_path):
    rates = [1e-3, 1.1e-3, 1e-2, 1e-1]
    for mixer in ("attn", "gdn"):
        fakes.add_run(tmp_path, [0.5] * 6, lr=rates[:3], seed=[0, 1], mixer=mixer)
    fakes.add_run(tmp_path, [0.5] * 4, lr=rates, mixer="mesa")
    frame = collect(tmp_path)
    (panel,) = learning_rates(frame, best_per_cell(frame), "official").axes
    *beside, alone = drawn(panel, "mesa")
    assert alone == rates[-1]
    places = [list(drawn(panel, mixer)) for mixer in ("attn", "gdn")] + [beside]
    near, far = 0.35 * np.log(1.1), 0.042 * 1.18 * np.log(100)
    expected = [[-near, -near, -far], [0, 0, 0], [near, near, far]]
    assert np.log(np.array(places) / rates[:3]) == pytest.approx(np.array(expected))


def test_at_a_single_rate_intervals_stay_near_its_tick(tmp_path):
    for mixer in ("attn", "gdn"):
        fakes.add_run(tmp_path, [0.5, 0.6], lr=[1e-3], seed=[0, 1], mixer=mixer)
        fakes.add_run(tmp_path, [0.5, 0.6, 0.5, 0.6], lr=[1e-3, 1e-2], seed=[0, 1], mixer=mixer, task="mem")
    frame = collect(tmp_path)
    panel = learning_rates(frame, best_per_cell(frame), "official").axes[0]
    low, high = np.log(panel.get_xlim())
    (left,), (right,) = (drawn(panel, mixer) for mixer in ("attn", "gdn"))
    assert np.log(right / left) == pytest.approx(0.084 * (high - low))


def test_the_intervals_of_a_single_mixer_stay_at_their_rates(tmp_path):
    fakes.add_run(tmp_path, [0.3, 0.9, 0.5, 0.3, 0.7, 0.4], seed=[0, 1])
    fakes.add_run(tmp_path, [0.3, 0.9, 0.5], mixer="gdn")
    frame = collect(tmp_path)
    figure = learning_rates(frame, best_per_cell(frame), "official")
    assert list(drawn(figure.axes[0], "attn")) == list(drawn(figure.axes[0], "gdn")) == list(fakes.GRID)
    assert "side by side" not in figure.texts[1].get_text()


def shifts(panel, mixers, values):
    """How far the points of mixers stand from their values, in the unit of the panel's axis."""
    drawn_at, at = np.array([list(drawn(panel, mixer)) for mixer in mixers]), np.array(values)
    return np.log(drawn_at / at) if panel.get_xscale() == "log" else drawn_at - at


def test_mixers_with_intervals_stand_side_by_side_along_difficulty(tmp_path):
    """Whether the axis is logarithmic or not. Another task has one seed, and its points stay."""
    lengths_, noise = (64, 128, 256), (0.2, 0.4, 0.6)
    for mixer in ("attn", "gdn"):
        for length in lengths_:
            fakes.add_run(
                tmp_path, [0.3, 0.5], lr=[1e-3], seed=[0, 1], mixer=mixer, setting=f"seq_len-{length}", seq_len=length
            )
        for share in noise:
            given = {"setting": f"frac_noise-{share}", "frac_noise": share}
            fakes.add_run(tmp_path, [0.3, 0.5], lr=[1e-3], seed=[0, 1], mixer=mixer, task="ncr", **given)
            fakes.add_run(tmp_path, [0.4], lr=[1e-3], mixer=mixer, task="sc", **given)
    frame = collect(tmp_path)
    figure = difficulty(frame, best_per_cell(frame), "official")
    by_length, by_noise, unmoved = figure.axes
    assert (by_length.get_xscale(), by_noise.get_xscale()) == ("log", "linear")
    for panel, values, span in ((by_length, lengths_, np.log(4)), (by_noise, noise, 0.4)):
        room = 0.042 * 1.18 * span
        assert shifts(panel, ("attn", "gdn"), values) == pytest.approx(np.array([[-room] * 3, [room] * 3]))
    assert not shifts(unmoved, ("attn", "gdn"), noise).any()
    sizes = [
        max(line.get_markersize() for line in panel.lines if line.get_label() in ("attn", "gdn"))
        for panel in figure.axes
    ]
    assert sizes[0] == sizes[1] < sizes[2]
    assert "side by side" in figure.texts[1].get_text()  # although the last panel has no intervals


def test_what_has_no_score_is_one_cross_at_its_value(tmp_path):
    for mixer in ("attn", "gdn", "mesa"):
        for length in (64, 128):
            has_none = (mixer, length) in (("attn", 64), ("gdn", 64))
            scores = ["diverged", "diverged"] if has_none else [0.3, 0.5]
            fakes.add_run(
                tmp_path, scores, lr=[1e-3], seed=[0, 1], mixer=mixer, setting=f"seq_len-{length}", seq_len=length
            )
    frame = collect(tmp_path)
    figure = difficulty(frame, best_per_cell(frame), "official")
    assert [list(line.get_xdata()) for line in crosses(figure.axes[0]) if line.get_label() == "_cross"] == [[64], [64]]
    assert "no score" in legend_texts(figure)


@pytest.mark.parametrize(
    ("key", "values", "places"),
    [
        ("optimizer.name", ("adamw", "muon", "sgd"), [0, 1, 2]),
        ("optimizer.momentum", (0.3, 0.5, 0.9), [0.3, 0.5, 0.9]),
        ("model.d_model", (64, 128, 512), np.log([64, 128, 512])),
    ],
)
def test_mixers_with_intervals_stand_side_by_side_along_a_key(tmp_path, key, values, places):
    """By equal steps of the axis, whether it has names, numbers or their logarithms."""
    for mixer in ("attn", "gdn"):
        for value in values:
            fakes.add_run(tmp_path, [0.3, 0.5], lr=[1e-3], seed=[0, 1], mixer=mixer, changed={key: value})
            fakes.add_run(tmp_path, [0.4], lr=[1e-3], mixer=mixer, changed={key: value}, task="state_tracking")
    swept = spread_out(collect(tmp_path))
    cells = best_per_cell(swept.frame)
    figure = accuracy_by_key(swept, task_table(cells), cells, "official", key)
    panel, *_, unmoved = figure.axes
    at = range(3) if key == "optimizer.name" else values
    room = 0.042 * 1.18 * (places[2] - places[0])
    assert shifts(panel, ("attn", "gdn"), at) == pytest.approx(np.array([[-room] * 3, [room] * 3]))
    assert not shifts(unmoved, ("attn", "gdn"), at).any()
    under = figure.texts[1].get_text().replace("\n", " ")
    assert "; mixers side by side where error bars would overlap; error bars" in under
