"""The figures of accuracy along an axis: a task's difficulty, lengths, learning rates and swept keys."""

import fakes
import matplotlib.pyplot as plt
import numpy as np
import pytest
from figure_texts import assert_legible, crosses, drawn, legend_texts, painted
from matplotlib.colors import to_hex

from mixerlab.records.names import MIXERS, axis_of
from mixerlab.sweeps.figures.axis import accuracy_by_key, difficulty, learning_rates, lengths
from mixerlab.sweeps.figures.canvas import ONE_COLUMN, TWO_COLUMNS
from mixerlab.sweeps.figures.marks import SEVERAL
from mixerlab.sweeps.figures.size import accuracy_by_size
from mixerlab.sweeps.figures.styles import styles
from mixerlab.sweeps.figures.ticks import rate_ticks, value_ticks
from mixerlab.sweeps.tables.collect import best_per_cell, collect
from mixerlab.sweeps.tables.keys import spread_out
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


def marked(panel, label):
    """How many points the marks with this label have, of crosses and hollow ones."""
    return sum(len(line.get_xdata()) for line in panel.lines if line.get_label() == label)


def test_difficulty_puts_the_baseline_at_its_value(frame, cells):
    figure = difficulty(frame, cells, "official")
    (panel,) = figure.axes  # mem has no axis here, icr has one
    assert panel.get_title() == "icr"
    assert panel.get_xlabel() == "sequence length (tokens)"
    assert drawn(panel, "attn") == pytest.approx({128: 0.9, 256: 0.8, 512: 0.6})
    assert drawn(panel, "parallax") == pytest.approx({128: 0.95, 256: 0.85, 512: float("nan")}, nan_ok=True)
    assert [line.get_xdata()[0] for line in crosses(panel)] == [512, 512]
    assert panel.get_xscale() == "log"
    assert [label.get_text() for label in panel.get_xticklabels()] == ["128", "256", "512"]
    assert drawn(panel, "_chance") == pytest.approx({128: 1 / 8, 256: 1 / 8, 512: 1 / 8})


def test_mixers_of_one_accuracy_are_all_seen_and_on_their_ticks(tmp_path):
    for mixer in MIXERS:
        for setting in ("baseline", "seq_len-256"):
            fakes.add_run(tmp_path, [0.3, 1.0, "diverged"], mixer=mixer, setting=setting)
    frame = collect(tmp_path)
    cells = best_per_cell(frame)
    for figure in (difficulty(frame, cells, "official"), learning_rates(frame, cells, "official")):
        (panel,) = figure.axes
        look = styles(MIXERS)
        figure.set_dpi(300)
        assert all(painted(figure, panel, style.colour) > 20 for style in look.values())
        places = {tuple(line.get_xdata()) for line in panel.lines if line.get_label() in look}
        assert len(places) == 1
        assert set(*places) == set(panel.get_xticks())
        low, high = panel.get_xlim()
        (xs,) = places
        assert 0 < low < min(xs) and max(xs) < high < 2 * max(xs)


def test_titles_say_how_was_chosen(results, frame):
    for selection, where in (("official", "test"), ("clean", "validation")):
        cells = best_per_cell(frame, selection)
        figure = difficulty(frame, cells, selection)
        assert figure.get_suptitle() == "Accuracy by difficulty"
        assert [text.get_text() for text in figure.texts[1:]] == [f"learning rate and checkpoint chosen on {where}"]


def test_only_one_mixer_without_a_score_has_a_cross_of_its_colour(tmp_path):
    for mixer, settings in (("attn", ("baseline",)), ("gdn", ("baseline", "seq_len-256")), ("mesa", ("seq_len-512",))):
        for setting in settings:
            fakes.add_run(tmp_path, [0.9, 0.8, 0.7], mixer=mixer, setting=setting)
    frame = collect(tmp_path)
    (panel,) = difficulty(frame, best_per_cell(frame), "official").axes
    found = {(x, to_hex(line.get_color())) for line in crosses(panel) for x in line.get_xdata()}
    mesa = styles(["attn", "gdn", "mesa"])["mesa"].colour.lower()
    assert found == {(128, mesa), (256, to_hex(SEVERAL)), (512, to_hex(SEVERAL))}


def test_no_difficulty_without_an_axis(tmp_path):
    fakes.add_run(tmp_path, [0.3, 0.9, 0.5])
    fakes.add_run(tmp_path, [0.3, 0.9, 0.5], task="icr_challenge", setting="256-512")
    frame = collect(tmp_path)
    assert difficulty(frame, best_per_cell(frame), "official") is None


@pytest.mark.parametrize(
    ("setting", "axis"),
    [
        ("seq_len-512", ("seq_len", 512.0)),
        ("frac_noise=0.2", ("frac_noise", 0.2)),
        ("frac_noise=1e-05", ("frac_noise", 1e-5)),
        ("depth-3", ("depth", 3.0)),
        ("S3-128,test_seq_len=256", ("S3-128,test_seq_len", 256.0)),
        *((level, None) for level in ("baseline", "A5-8", "S3-128", "s3-128", "4-64", "A5-8,seq_len=16")),
    ],
)
def test_only_a_parameter_is_an_axis(setting, axis):
    assert axis_of(setting) == axis


@pytest.mark.parametrize(("layout", "expected"), [(ONE_COLUMN, (7, False)), (TWO_COLUMNS, (6, True))])
def test_the_difficulty_of_six_tasks_fits_a_page(tmp_path, layout, expected):
    """Each task has three axes, one also test rows of another length; before, two columns were 10 inches high."""
    sizes = {"vocab_size": 16, "seq_len": 128, "num_train_examples": 12800}
    for task in ("icr", "ncr", "fcr", "mem", "cmp", "sc"):
        for setting in ("baseline", "vocab_size-128", "seq_len-1024", "num_train_examples-800"):
            fakes.add_run(tmp_path, [0.9, 0.8], lr=1e-3, seed=[0, 1], task=task, setting=setting, **sizes)
    fakes.add_run(tmp_path, [0.5], lr=1e-3, setting="test_seq_len=512", test_seq_len=512, **sizes)
    frame = collect(tmp_path)
    figure = difficulty(frame, best_per_cell(frame), "official", layout)
    height = figure.get_size_inches()[1]
    assert len(figure.axes) == 19 and height <= 8.5 + 1e-6
    assert_legible(figure)
    boxes = [panel.get_position() for panel in figure.axes]
    assert all(box.height * height >= 0.5 - 1e-6 for box in boxes)
    lines = {}
    for panel, box in zip(figure.axes, boxes, strict=True):
        lines.setdefault(round(box.y0, 6), []).append(panel.get_title())
    each_its_own = all(len(set(titles)) == 1 for titles in lines.values())
    assert (len(lines), each_its_own) == expected


def test_lengths_trained_and_tested(tmp_path):
    for mixer in ("attn", "gdn"):
        fakes.add_run(tmp_path, [0.3, 0.9, 0.5], mixer=mixer)
        fakes.add_run(tmp_path, [0.3, 0.8, 0.5], mixer=mixer, setting="seq_len-256")
        fakes.add_run(tmp_path, [0.3, 0.4, 0.5], mixer=mixer, setting="test_seq_len=512", test_seq_len=512)
    frame = collect(tmp_path)
    figure = lengths(frame, best_per_cell(frame), "official")
    trained, tested = figure.axes
    assert (trained.get_xlabel(), tested.get_xlabel()) == ("sequence length", "test length (trained at 128)")
    assert drawn(trained, "gdn") == pytest.approx({128: 0.9, 256: 0.8})
    assert drawn(tested, "gdn") == pytest.approx({128: 0.9, 512: 0.5})
    assert lengths(frame, best_per_cell(frame[frame["setting"] == "baseline"]), "official") is None


def test_accuracy_by_the_length_of_test_rows_of_a_level(tmp_path):
    for length, accuracy in ((128, 0.9), (256, 0.6), (512, 0.2)):
        label, given = ("S3-128", {}) if length == 128 else (f"S3-128,test_seq_len={length}", {"test_seq_len": length})
        fakes.add_run(tmp_path, [0.1, accuracy, 0.1], task="state_tracking", setting=label, seq_len=128, **given)
    fakes.add_run(tmp_path, [0.1, 0.8, 0.1], task="state_tracking", setting="A5-128", seq_len=128, vocab_size=60)
    frame = collect(tmp_path)
    cells = best_per_cell(frame)
    assert cells["setting"].tolist() == ["A5-128", "S3-128", "S3-128,test_seq_len=256", "S3-128,test_seq_len=512"]
    (panel,) = difficulty(frame, cells, "official").axes  # of the lengths: groups are no axis
    assert panel.get_title() == "state_tracking S3-128"
    (panel,) = lengths(frame, cells, "official").axes
    assert drawn(panel, "attn") == pytest.approx({128: 0.9, 256: 0.6, 512: 0.2})
    assert (panel.get_title(), panel.get_xlabel()) == ("state_tracking S3-128", "test length (trained at 128)")


def test_learning_rates(frame, cells):
    figure = learning_rates(frame, cells, "official")
    icr, mem = figure.axes
    assert (icr.get_title(), mem.get_title()) == ("icr", "mem")
    assert drawn(icr, "attn") == pytest.approx({5e-4: 0.7 / 3, 1e-3: 2.3 / 3, 5e-3: 1.3 / 3})
    assert drawn(icr, "parallax") == pytest.approx({5e-4: 0.25, 1e-3: 0.9, 5e-3: 0.45})
    # parallax diverged at seq_len-512, novel lacks it: three learning rates each
    assert (marked(icr, "_hollow"), marked(mem, "_cross")) == (6, 3)
    assert [label.get_text() for label in icr.get_xticklabels()] == ["5e-4", "1e-3", "5e-3"]


def test_a_rate_at_which_a_seed_diverged_or_was_not_run_is_hollow(tmp_path):
    scores = [0.3, 0.9, 0.5, 0.3, 0.7, "diverged", 0.3, 0.8, "diverged"]
    fakes.add_run(tmp_path, scores, seed=[0, 1, 2])
    fakes.add_run(tmp_path, [0.4], lr=1e-4, mixer="gdn")
    fakes.add_run(tmp_path, [0.4, 0.5], lr=1e-3, seed=[0, 1], mixer="gdn")
    frame = collect(tmp_path)
    (panel,) = learning_rates(frame, best_per_cell(frame), "official").axes
    assert list(drawn(panel, "attn").values()) == pytest.approx([0.3, 0.8, 0.5])
    hollow = [x for line in panel.lines if line.get_label() == "_hollow" for x in line.get_xdata()]
    (*_, last), (first, _) = (drawn(panel, mixer) for mixer in ("attn", "gdn"))
    assert hollow == [last, first]


def test_a_rate_that_only_some_settings_have_is_left_out(tmp_path):
    fakes.add_run(tmp_path, [0.2, 0.3], lr=[1e-3, 5e-3])
    fakes.add_run(tmp_path, [0.4, 0.5, 0.9], lr=[1e-3, 5e-3, 1e-2], setting="seq_len-256")
    frame = collect(tmp_path)
    figure = learning_rates(frame, best_per_cell(frame), "official")
    (panel,) = figure.axes
    assert drawn(panel, "attn") == pytest.approx({1e-3: 0.3, 5e-3: 0.4})
    assert [label.get_text() for label in panel.get_xticklabels()] == ["1e-3", "5e-3"]
    assert not marked(panel, "_hollow")
    assert "without rates that only some of them have" in figure.texts[1].get_text()


def test_a_rate_at_which_a_setting_diverged_is_hollow_and_no_line_leads_to_it(tmp_path):
    fakes.add_run(tmp_path, [0.2, 0.3, "diverged"])
    fakes.add_run(tmp_path, [0.4, 0.5, 0.9], setting="seq_len-256")
    frame = collect(tmp_path)
    figure = learning_rates(frame, best_per_cell(frame), "official")
    (panel,) = figure.axes
    shown = {lr: mean for lr, mean in drawn(panel, "attn").items() if not np.isnan(mean)}
    assert shown == pytest.approx({5e-4: 0.3, 1e-3: 0.4})
    assert [list(line.get_xdata()) for line in panel.lines if line.get_label() == "_hollow"] == [[5e-3]]
    assert "without" not in figure.texts[1].get_text()


def test_a_task_without_any_score_is_crosses(tmp_path):
    fakes.add_run(tmp_path, ["diverged"] * 3)
    frame = collect(tmp_path)
    (panel,) = learning_rates(frame, best_per_cell(frame), "official").axes
    (cross,) = crosses(panel)
    assert list(cross.get_xdata()) == [5e-4, 1e-3, 5e-3]


def test_clean_selection_draws_its_own_scores(tmp_path):
    fakes.add_run(tmp_path, [(0.3, 0.4), (0.9, 0.5), (0.5, 0.6)])
    frame = collect(tmp_path)
    frame["clean_accuracy"] /= 2
    (panel,) = learning_rates(frame, best_per_cell(frame, "clean"), "clean").axes
    assert drawn(panel, "attn") == pytest.approx({5e-4: 0.15, 1e-3: 0.45, 5e-3: 0.25})


def test_a_line_has_only_the_keys_of_its_columns(tmp_path):
    """`dim=` is also the end of `head_dim=`, which these columns have."""
    for width, accuracy in ((64, 0.5), (128, 0.7)):
        given = {"mixer.head_dim": 16, "model.d_model": width}
        fakes.add_run(tmp_path, [0.3, accuracy, 0.5], changed=given)
        fakes.add_run(tmp_path, [0.3, accuracy, 0.5], changed=given | {"mixer.head_dim": 32})
        for dim in (1, 2):
            given = {"mixer.dim": dim, "model.d_model": width}
            fakes.add_run(tmp_path, [0.3, accuracy, 0.5], mixer="gdn", changed=given)
    swept = spread_out(collect(tmp_path))
    cells = best_per_cell(swept.frame)
    figure = accuracy_by_key(swept, task_table(cells), cells, "official", "model.d_model")
    assert legend_texts(figure) == ["attn, head_dim=16", "attn, head_dim=32", "gdn, dim=1", "gdn, dim=2", "chance"]
    (panel,) = accuracy_by_key(swept, task_table(cells), cells, "official", "mixer.dim").axes
    assert [label.get_text() for label in panel.get_xticklabels()] == ["1", "2"]  # none for attn, which has no such key


def test_accuracy_by_a_swept_key(tmp_path):
    for mixer in ("attn", "gdn"):
        for width, accuracy in ((64, 0.5), (128, 0.7)):
            fakes.add_run(tmp_path, [0.3, accuracy, 0.5], mixer=mixer, changed={"model.d_model": width})
    fakes.add_run(tmp_path, [0.3, 0.9, 0.5], changed={"optimizer.name": "adamw"})
    swept = spread_out(collect(tmp_path))
    cells = best_per_cell(swept.frame)
    table = task_table(cells)
    (panel,) = accuracy_by_key(swept, table, cells, "official", "model.d_model").axes
    assert drawn(panel, "attn, optimizer=muon") == pytest.approx({64: 0.5, 128: 0.7})
    assert panel.get_xlabel() == "d_model" and panel.get_title() == "icr"
    figure = accuracy_by_key(swept, table, cells, "official", "optimizer.name")
    assert legend_texts(figure) == ["attn, d_model=128", "chance"]  # the only line of two values
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["adamw", "muon"]


@pytest.mark.parametrize(("values", "scale"), [([0, 0.5, 0.9], "linear"), ([-1, 1, 4], "linear"), ([1, 4], "log")])
def test_only_positive_values_that_grow_by_factors_are_on_a_logarithmic_axis(values, scale):
    panel = plt.figure().add_subplot()
    value_ticks(panel, values, 2.0)
    assert panel.get_xscale() == scale
    plt.close("all")


@pytest.mark.parametrize(
    ("key", "values"), [("optimizer.name", ("adamw", "muon", "sgd")), ("model.d_model", (8, 9, 10))]
)
def test_no_line_joins_values_without_an_order(tmp_path, key, values):
    for mixer in ("attn", "gdn"):
        for place, value in enumerate(values):
            fakes.add_run(tmp_path, [0.3, 0.5 + 0.1 * place, 0.5], mixer=mixer, changed={key: value})
    swept = spread_out(collect(tmp_path))
    cells = best_per_cell(swept.frame)
    figure = accuracy_by_key(swept, task_table(cells), cells, "official", key)
    look = "-" if key == "model.d_model" else "None"
    shown = [line for line in figure.axes[0].lines if line.get_label() in ("attn", "gdn")]
    shown += [handle for handle in figure.legends[0].legend_handles if handle.get_label() in ("attn", "gdn")]
    assert [(line.get_linestyle(), bool(line.get_marker())) for line in shown] == [(look, True)] * 4
    assert list(drawn(figure.axes[0], "gdn").values()) == pytest.approx([0.5, 0.6, 0.7])


def test_of_many_settings_the_last_of_each_task_has_a_panel(tmp_path):
    """A table of settings has no average: five challenge tasks of three levels are 15 rows."""
    tasks = ("icr_challenge", "ncr_challenge", "sc_challenge", "icr_vocab_challenge", "ncr_vocab_challenge")
    for width in (64, 128):
        for task in tasks:
            for level, accuracy in (("128-512", 0.9), ("256-1024", 0.8), ("512-2048", 0.2 + width / 256)):
                given = {"model.d_model": width}
                vocab_size = int(level.partition("-")[0])
                fakes.add_run(
                    tmp_path, [accuracy], task=task, setting=level, lr=1e-3, changed=given, vocab_size=vocab_size
                )
    swept = spread_out(collect(tmp_path))
    cells = best_per_cell(swept.frame)
    table = setting_table(cells)
    hardest = [f"{task} 512-2048" for task in tasks]
    figure = accuracy_by_key(swept, table, cells, "official", "model.d_model")
    assert [panel.get_title().replace("\n", " ") for panel in figure.axes] == hardest
    assert drawn(figure.axes[0], "attn") == pytest.approx({64: 0.45, 128: 0.7})
    assert set(drawn(figure.axes[0], "_chance").values()) == {1 / 256}  # of this level, not of the task's mean
    figure = accuracy_by_size(table, cells, "official")
    assert [panel.get_title().replace("\n", " ") for panel in figure.axes] == [name for name in hardest for _ in "ab"]
    sizes = ["state size (elements)", "parameters"]
    assert [panel.get_xlabel() for panel in figure.axes] == sizes * len(hardest)
    assert_legible(figure)


def test_where_labels_of_even_places_do_not_fit_every_second_one_stays():
    sizes = [256, 512, 1024, 2048, 4096, 8192]
    figure, panel = plt.subplots()
    value_ticks(panel, sizes, inches=10.0)
    assert [label.get_text() for label in panel.get_xticklabels()] == list(map(str, sizes))
    value_ticks(panel, sizes, inches=1.4)
    assert [label.get_text() for label in panel.get_xticklabels()] == ["", "512", "", "2048", "", "8192"]
    plt.close(figure)


def test_rates_that_differ_have_labels_that_differ():
    figure, panel = plt.subplots()
    rates = [2.5e-4, 3e-4, 10**-2.5, 1e-2]
    rate_ticks(panel, rates, inches=10.0)
    assert [label.get_text() for label in panel.get_xticklabels()] == ["2.5e-4", "3e-4", "3.16e-3", "1e-2"]
    plt.close(figure)


def test_shapes_that_look_small_are_drawn_larger(tmp_path):
    """The first mixer beyond the known ones has a plus; the one after it a star."""
    mixers = ("attn", "gla", "hyena")
    for mixer in mixers:
        fakes.add_run(tmp_path, [0.3, 0.5], lr=[1e-3, 1e-2], seed=[0], mixer=mixer)
    frame = collect(tmp_path)
    (panel,) = learning_rates(frame, best_per_cell(frame), "official").axes
    disc, plus, star = (line for line in panel.lines if line.get_label() in mixers)
    assert (disc.get_marker(), plus.get_marker(), star.get_marker()) == ("o", "P", "*")
    assert plus.get_markersize() > disc.get_markersize() and star.get_markersize() > 5  # points
