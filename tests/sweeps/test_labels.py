"""Long labels in figures differ, and what they share is said once."""

import itertools

import fakes
import pytest
from figure_texts import assert_legible, legend_texts

from mixerlab.sweeps.figures.axis import accuracy_by_key
from mixerlab.sweeps.figures.canvas import ONE_COLUMN, TWO_COLUMNS
from mixerlab.sweeps.figures.labels import told_apart, without_shared
from mixerlab.sweeps.figures.table import bars, heat_map
from mixerlab.sweeps.tables.collect import best_per_cell, collect
from mixerlab.sweeps.tables.keys import spread_out
from mixerlab.sweeps.tables.tables import setting_table, task_table


def heads_of(figure):
    """The names above the columns of a heat map."""
    return [label.get_text() for label in figure.axes[0].get_xticklabels()]


@pytest.mark.parametrize("layout", [ONE_COLUMN, TWO_COLUMNS])
def test_long_labels_differ_and_say_once_what_they_share(tmp_path, layout):
    """Six columns, whose names begin with two keys that all have and end with the one that differs."""
    for mixer in ("attn", "gdn"):
        for weight_decay, accuracy in ((0.01, 0.5), (0.1, 0.7), (0.11, 0.9)):
            given = {"model.autoencoder_redraw_all": True, "trainer.batch_size": 128}
            given |= {"optimizer.weight_decay": weight_decay, "mixer.head_dim": 16}
            fakes.add_run(tmp_path, [0.3, accuracy, 0.5], mixer=mixer, changed=given)
    keys = ["mixer.head_dim", "model.autoencoder_redraw_all", "optimizer.weight_decay", "trainer.batch_size"]
    swept = spread_out(collect(tmp_path), keys)
    cells = best_per_cell(swept.frame)
    assert cells["mixer"][0] == "attn, head_dim=16, autoencoder_redraw_all=true, weight_decay=0.01, batch_size=128"
    told = [f"{mixer}, weight_decay={decay}" for mixer in ("attn", "gdn") for decay in ("0.01", "0.1", "0.11")]
    shared = "head_dim=16,\nautoencoder_redraw_all=true, batch_size=128"
    figure = bars(task_table(cells), "Accuracy by task", "official", layout)
    assert legend_texts(figure) == [*told, f"all: {shared}"]
    assert_legible(figure)
    figure = accuracy_by_key(swept, task_table(cells), cells, "official", "optimizer.weight_decay", layout)
    assert legend_texts(figure) == ["attn", "gdn", f"all: {shared}", "chance"]
    figure = heat_map(setting_table(cells), "official", layout)
    assert heads_of(figure) == told
    assert "all columns: head_dim=16" in figure.texts[-1].get_text().replace("\n", " ")
    assert_legible(figure)


@pytest.mark.parametrize("layout", [ONE_COLUMN, TWO_COLUMNS])
def test_long_labels_that_share_nothing_are_whole(tmp_path, layout):
    for width, batch_size, weight_decay in itertools.product((64, 128), (32, 64), (0.01, 0.1)):
        given = {"model.d_model": width, "trainer.batch_size": batch_size, "optimizer.weight_decay": weight_decay}
        fakes.add_run(tmp_path, [0.3, 0.9, 0.5], mixer="a_mixer_with_a_long_name", changed=given)
    cells = best_per_cell(spread_out(collect(tmp_path)).frame)
    names = list(task_table(cells).mixers)
    assert min(map(len, names)) > 44
    figure = bars(task_table(cells), "Accuracy by task", "official", layout)
    assert [text.replace("\n", " ") for text in legend_texts(figure)] == names
    assert_legible(figure)
    figure = heat_map(setting_table(cells), "official", layout)
    assert heads_of(figure) == names
    assert_legible(figure)


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (["adamw", "muon_with_decay"], ["adamw", "muon_wi…"]),
        (["muon_decay_1_per_step", "muon_decay_2_per_step"], ["muon_decay_1_per_step", "muon_decay_2_per_step"]),
        (["cosine_slow", "cosine_fast", "linear"], ["…ne_slow", "…ne_fast", "linear"]),
        (["constant", "constant"], ["constant", "constant"]),
    ],
)
def test_cut_labels_differ(labels, told):
    assert told_apart(labels, 8) == told


def test_what_columns_share_is_whole_keys():
    columns = ['hybrid, layers=["attn", "gdn"], d_model=64', 'hybrid, layers=["gdn", "gdn"], d_model=64']
    assert without_shared(columns) == (
        ['hybrid, layers=["attn", "gdn"]', 'hybrid, layers=["gdn", "gdn"]'],
        "d_model=64",
    )
    columns = ["a+b, layer 0 num_heads=2, layer 1 num_heads=4", "a+b, layer 0 num_heads=2, layer 1 num_heads=8"]
    assert without_shared(columns) == (["a+b, layer 1 num_heads=4", "a+b, layer 1 num_heads=8"], "layer 0 num_heads=2")
    assert without_shared(["attn, d_model=64", "gdn"]) == (["attn, d_model=64", "gdn"], "")
    assert without_shared(["attn, d_model=64"]) == (["attn, d_model=64"], "")
