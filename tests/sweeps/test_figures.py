"""The figures show every mixer in its colour, every score at its height, and every gap as a mark."""

import itertools
import math

import fakes
import numpy as np
import pandas as pd
import pytest
from figure_texts import assert_legible, legend_texts
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

from mixerlab.sweeps import ticks
from mixerlab.sweeps.axis_figures import accuracy_by_key, difficulty, learning_rates, lengths
from mixerlab.sweeps.canvas import save
from mixerlab.sweeps.collect import best_per_cell, collect
from mixerlab.sweeps.curve_figure import training_curves
from mixerlab.sweeps.files import METRICS_FILE, read_record, record_bytes, run_folder, write_record
from mixerlab.sweeps.keys import spread_out
from mixerlab.sweeps.marks import SEVERAL
from mixerlab.sweeps.names import MIXERS, axis_of
from mixerlab.sweeps.run_figure import run_curves
from mixerlab.sweeps.size_figure import accuracy_by_size
from mixerlab.sweeps.styles import _from_oklch, _to_oklch, styles
from mixerlab.sweeps.table_figures import bars, heat_map
from mixerlab.sweeps.tables import setting_table, task_table


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    for mixer, top in (("attn", 0.9), ("parallax", 0.95), ("novel", 0.7)):
        fakes.add_run(folder, [0.3, top, 0.5], mixer=mixer)
        fakes.add_run(folder, [0.2, top - 0.1, 0.4], mixer=mixer, setting="seq_len-256")
        fakes.add_run(folder, [0.6, 0.5, "diverged"], mixer=mixer, task="mem")
    fakes.add_run(folder, [0.2, 0.6, 0.4], mixer="attn", setting="seq_len-512")
    fakes.add_run(folder, ["diverged"] * 3, mixer="parallax", setting="seq_len-512")
    return folder


@pytest.fixture(scope="module")
def frame(results):
    return collect(results)


@pytest.fixture(scope="module")
def cells(frame):
    return best_per_cell(frame)


def crosses(panel):
    return [line for line in panel.lines if line.get_marker() == "x"]


def drawn(panel, mixer):
    """Points of the mixer's line, found by its label."""
    (line,) = [line for line in panel.lines if line.get_label() == mixer]
    return dict(zip(np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float), strict=True))


def marked(panel, label):
    """How many points the marks with this label have, of crosses and hollow ones."""
    return sum(len(line.get_xdata()) for line in panel.lines if line.get_label() == label)


def painted(figure, panel, colour):
    """How many pixels of the panel have this colour."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    box = panel.get_window_extent()
    picture = np.asarray(canvas.buffer_rgba())[::-1, :, :3]  # rows from below, as in the box
    inside = picture[int(box.y0) : int(box.y1), int(box.x0) : int(box.x1)] / 255
    return (np.abs(inside - to_rgb(colour)).max(axis=-1) < 0.02).sum()


def keep_epochs(results, run_id, replica, epochs):
    folder = run_folder(results, run_id)
    path = folder / METRICS_FILE
    metrics = pd.read_csv(path)
    metrics[(metrics["replica"] != replica) | (metrics["epoch"] < epochs)].to_csv(path, index=False)
    write_record(folder, read_record(folder), replaces=record_bytes(folder))  # with the digest of these metrics


def test_styles_are_fixed_and_distinct():
    known = styles(MIXERS)
    more = styles([*MIXERS, "novel", "another"])
    assert {name: more[name] for name in MIXERS} == known
    assert styles(["parallax"])["parallax"] == known["parallax"]
    assert list(more) == [*MIXERS, "another", "novel"]
    assert len({style.colour for style in more.values()}) == len(more)
    assert len({style.marker for style in more.values()}) == len(more)
    assert len({style.hatch for style in more.values()}) == len(more)
    assert styles(["novel", "attn", "another"])["novel"] == more["novel"]


def test_many_mixers_still_differ():
    many = styles(f"mixer{i:02}" for i in range(40)).values()
    assert len({(style.colour, style.marker) for style in many}) == 40
    fifteen = styles([*MIXERS, *(f"mixer{i}" for i in range(10))]).values()
    assert len({style.colour for style in fifteen}) == 15 and len({style.hatch for style in fifteen}) == 15


def test_the_columns_of_one_mixer_share_its_hue():
    look = styles([f"{mixer}, d_model={width}" for mixer in ("attn", "gdn") for width in (64, 128, 256)])
    assert list(look)[:3] == ["attn, d_model=64", "attn, d_model=128", "attn, d_model=256"]
    assert look["attn, d_model=128"].colour == styles(["attn"])["attn"].colour
    lightness = [_to_oklch(look[f"gdn, d_model={width}"].colour)[0] for width in (64, 128, 256)]
    assert lightness == sorted(lightness, reverse=True)
    assert all(len({getattr(style, part) for style in look.values()}) == 6 for part in ("colour", "marker", "hatch"))


@pytest.mark.parametrize("variants", [2, 3, 5])
def test_mixers_with_several_columns_share_no_colour_family(variants):
    """Of one variant, no two of fifteen mixers are taken for one colour, in the darkest shades either."""
    others = ("based", "delta", "gla", "hyena", "lion", "minimal", "retnet", "rwkv", "s4", "attn+gdn")
    look = styles(f"{mixer}, num_heads={2**n}" for mixer in (*MIXERS, *others) for n in range(variants))
    assert len({style.colour for style in look.values()}) == len(look) == 15 * variants
    for n in range(variants):
        shades = [_oklab(look[f"{mixer}, num_heads={2**n}"].colour) for mixer in (*MIXERS, *others)]
        assert min(math.dist(one, other) for one, other in itertools.combinations(shades, 2)) > 0.04
        assert min(math.dist(one, other) for one, other in itertools.combinations(shades[:5], 2)) > 0.08


def test_a_line_through_the_columns_of_a_mixer_has_its_hue():
    columns = [f"{mixer}, num_heads={n}" for mixer in ("attn", "a", "b") for n in (2, 4, 8)]
    middle = styles(columns)
    lines = styles(["attn", "b"], beside=columns)
    assert {mixer: style.colour for mixer, style in lines.items()} == {
        mixer: middle[f"{mixer}, num_heads=4"].colour for mixer in ("attn", "b")
    }
    assert styles(["attn", "b"], beside=["attn", "b"]) == styles(["attn", "b"])


def _oklab(colour):
    lightness, chroma, hue = _to_oklch(colour)
    return lightness, chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))


def test_colours_come_back_from_oklch():
    for colour in ("#0072B2", "#D55E00", "#FFFFFF", "#123456"):
        assert _from_oklch(*_to_oklch(colour)) == colour


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
    assert legend_texts(figure) == ["attn", "parallax", "novel", "incomplete mean", "chance"]
    lefts = sorted(bar.get_x() for group in drawn_bars.values() for bar in group)
    assert np.diff(lefts).min() > 0.2  # no bar covers another
    (chance,) = [line for line in axes.lines if set(line.get_ydata()) == {0.125}]
    assert chance.get_xdata() == pytest.approx([-0.45, 0.45])


def test_bars_of_settings_cross_what_is_missing(cells):
    figure = bars(setting_table(cells), "Settings", "official")
    (axes,) = figure.axes
    assert len(axes.containers) == 10
    assert len(crosses(axes)) == 2
    assert [line.get_xdata()[0] for line in crosses(axes)] == pytest.approx([2.0, 2.0 + 0.88 / 3])
    assert legend_texts(figure)[-1] == "no score"


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


@pytest.mark.parametrize(
    ("setting", "axis"),
    [
        ("seq_len-512", ("seq_len", 512.0)),
        ("frac_noise=0.2", ("frac_noise", 0.2)),
        ("depth-3", ("depth", 3.0)),
        ("S3-128,test_seq_len=256", ("S3-128,test_seq_len", 256.0)),
        *((level, None) for level in ("baseline", "A5-8", "S3-128", "s3-128", "4-64", "A5-8,seq_len=16")),
    ],
)
def test_only_a_parameter_is_an_axis(setting, axis):
    assert axis_of(setting) == axis


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


def test_accuracy_by_state_size_and_its_frontier(tmp_path):
    for mixer, size, accuracy in (("attn", 4096, 0.9), ("gdn", 1024, 0.7), ("mamba", 2048, 0.6)):
        sizes = {"state_size": size, "num_params": 10 * size}
        fakes.add_run(tmp_path, [0.3, accuracy, 0.5], sizes=sizes, mixer=mixer)
    cells = best_per_cell(collect(tmp_path))
    state, parameters = accuracy_by_size(task_table(cells), cells, "official").axes
    assert (state.get_xlabel(), parameters.get_xlabel()) == ("state size (elements)", "parameters")
    assert drawn(state, "attn") == {4096: 0.9} and drawn(parameters, "gdn") == {10240: 0.7}
    assert drawn(state, "_frontier") == {1024: 0.7, 4096: 0.9}  # mamba is larger than gdn, and worse
    nothing = best_per_cell(collect(tmp_path / "nothing"), expected=[("attn", "icr", "baseline")])
    assert accuracy_by_size(task_table(nothing), nothing, "official") is None


def test_every_size_between_is_a_tick_too(tmp_path):
    for mixer, size in (("attn", 25_800), ("gdn", 29_000), ("mamba", 32_300)):
        fakes.add_run(tmp_path, [0.5], sizes={"state_size": size, "num_params": size}, mixer=mixer, lr=1e-3)
    cells = best_per_cell(collect(tmp_path))
    for panel in accuracy_by_size(task_table(cells), cells, "official").axes:
        assert panel.get_xticks().tolist() == [25_800, 29_000, 32_300]
        assert [label.get_text() for label in panel.get_xticklabels()] == ["25.8k", "29k", "32.3k"]
    assert_legible(accuracy_by_size(task_table(cells), cells, "official", 1))


def test_only_the_average_has_a_panel_of_parameters_where_there_is_one(tmp_path):
    for mixer in ("attn", "gdn"):
        for task in ("icr", "mem"):
            fakes.add_run(tmp_path, [0.5], mixer=mixer, task=task, lr=1e-3)
    cells = best_per_cell(collect(tmp_path))
    figure = accuracy_by_size(task_table(cells), cells, "official")
    assert [panel.get_xlabel() for panel in figure.axes] == ["state size (elements)"] * 3 + ["parameters"]
    assert "against parameters only Avg" in figure.texts[1].get_text()


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
            assert under.endswith("; error bars: 95 % interval over seeds, Student's") == told


def test_sizes_of_the_average_are_of_its_tasks(tmp_path):
    for mixer, larger in (("attn", 1), ("gdn", 2)):
        for task, size in (("icr", 1000), ("ncr", 3000), ("own_task", 80_000)):
            sizes = {"state_size": size * larger, "num_params": 10 * size * larger}
            fakes.add_run(tmp_path, [0.3, 0.9, 0.5], sizes=sizes, mixer=mixer, task=task)
    cells = best_per_cell(collect(tmp_path))
    *_, state, parameters = accuracy_by_size(task_table(cells), cells, "official").axes
    assert drawn(state, "attn") == {2000: 0.9} and drawn(parameters, "gdn") == {40_000: 0.9}


def test_only_one_mixer_without_a_score_has_a_cross_of_its_colour(tmp_path):
    for mixer, settings in (("attn", ("baseline",)), ("gdn", ("baseline", "seq_len-256")), ("mesa", ("seq_len-512",))):
        for setting in settings:
            fakes.add_run(tmp_path, [0.9, 0.8, 0.7], mixer=mixer, setting=setting)
    frame = collect(tmp_path)
    (panel,) = difficulty(frame, best_per_cell(frame), "official").axes
    found = {(x, to_hex(line.get_color())) for line in crosses(panel) for x in line.get_xdata()}
    mesa = styles(["attn", "gdn", "mesa"])["mesa"].colour.lower()
    assert found == {(128, mesa), (256, to_hex(SEVERAL)), (512, to_hex(SEVERAL))}


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


def test_heat_map(cells):
    figure = heat_map(setting_table(cells), "official")
    (panel,) = figure.axes
    (mesh,) = panel.collections
    shown = np.ma.filled(mesh.get_array(), np.nan)
    assert shown.shape == (4, 3) and shown[0] == pytest.approx([0.9, 0.95, 0.7])
    assert [label.get_text() for label in panel.get_yticklabels()][:2] == ["icr baseline", "icr seq_len-256"]
    assert len(crosses(panel)) == 2 and panel.texts[0].get_text() == ".90"


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


def test_no_difficulty_without_an_axis(tmp_path):
    fakes.add_run(tmp_path, [0.3, 0.9, 0.5])
    fakes.add_run(tmp_path, [0.3, 0.9, 0.5], task="icr_challenge", setting="256-512")
    frame = collect(tmp_path)
    assert difficulty(frame, best_per_cell(frame), "official") is None


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
    assert drawn(panel, "attn") == pytest.approx({5e-4: 0.3, 1e-3: 0.8, 5e-3: 0.5})
    hollow = [list(line.get_xdata()) for line in panel.lines if line.get_label() == "_hollow"]
    assert hollow == [[5e-3], [1e-4]]


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


def test_saved_as_picture_and_as_pdf_even_if_empty(tmp_path):
    nothing = best_per_cell(collect(tmp_path), expected=[("attn", "icr", "baseline")])
    paths = save(training_curves(tmp_path, nothing, "official"), tmp_path / "curves", ("png", "pdf"))
    assert [path.name for path in paths] == ["curves.png", "curves.pdf"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert paths[1].read_bytes().startswith(b"%PDF")
