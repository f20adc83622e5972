"""The figure of accuracy against state size and parameters."""

import fakes
from figure_texts import assert_legible, drawn

from mixerlab.sweeps.figures.canvas import ONE_COLUMN
from mixerlab.sweeps.figures.size import accuracy_by_size
from mixerlab.sweeps.tables.collect import best_per_cell, collect
from mixerlab.sweeps.tables.tables import task_table


def test_accuracy_by_state_size_and_its_frontier(tmp_path):
    for mixer, size, accuracy in (("attn", 4096, 0.9), ("gdn", 1024, 0.7), ("mamba", 2048, 0.6)):
        sizes = {"state_size": size, "num_params": 10 * size}
        fakes.add_run(tmp_path, [0.3, accuracy, 0.5], sizes=sizes, mixer=mixer)
    cells = best_per_cell(collect(tmp_path))
    state, parameters = accuracy_by_size(task_table(cells), cells, "official").axes
    assert (state.get_xlabel(), parameters.get_xlabel()) == ("state size (elements)", "parameters")
    assert drawn(state, "attn") == {4096: 0.9} and drawn(parameters, "gdn") == {10240: 0.7}
    assert drawn(state, "_frontier") == {1024: 0.7, 4096: 0.9}  # mamba is larger than gdn, and worse
    nothing = best_per_cell(collect(tmp_path / "nothing", fakes.by_run_id(fakes.config())))
    assert accuracy_by_size(task_table(nothing), nothing, "official") is None


def test_every_size_between_is_a_tick_too(tmp_path):
    for mixer, size in (("attn", 25_800), ("gdn", 29_000), ("mamba", 32_300)):
        fakes.add_run(tmp_path, [0.5], sizes={"state_size": size, "num_params": size}, mixer=mixer, lr=1e-3)
    cells = best_per_cell(collect(tmp_path))
    for panel in accuracy_by_size(task_table(cells), cells, "official").axes:
        assert panel.get_xticks().tolist() == [25_800, 29_000, 32_300]
        assert [label.get_text() for label in panel.get_xticklabels()] == ["25.8k", "29k", "32.3k"]
    assert_legible(accuracy_by_size(task_table(cells), cells, "official", ONE_COLUMN))


def test_only_the_average_has_a_panel_of_parameters_where_there_is_one(tmp_path):
    for mixer in ("attn", "gdn"):
        for task in ("icr", "mem"):
            fakes.add_run(tmp_path, [0.5], mixer=mixer, task=task, lr=1e-3)
    cells = best_per_cell(collect(tmp_path))
    figure = accuracy_by_size(task_table(cells), cells, "official")
    assert [panel.get_xlabel() for panel in figure.axes] == ["state size (elements)"] * 3 + ["parameters"]
    assert "against parameters only Avg" in figure.texts[1].get_text()


def test_sizes_of_the_average_are_of_its_tasks(tmp_path):
    for mixer, larger in (("attn", 1), ("gdn", 2)):
        for task, size in (("icr", 1000), ("ncr", 3000), ("own_task", 80_000)):
            sizes = {"state_size": size * larger, "num_params": 10 * size * larger}
            fakes.add_run(tmp_path, [0.3, 0.9, 0.5], sizes=sizes, mixer=mixer, task=task)
    cells = best_per_cell(collect(tmp_path))
    *_, state, parameters = accuracy_by_size(task_table(cells), cells, "official").axes
    assert drawn(state, "attn") == {2000: 0.9} and drawn(parameters, "gdn") == {40_000: 0.9}
