"""Figures: their texts can be read, they show the numbers of the tables, and they hide no gap."""

import itertools

import fakes
import numpy as np
import pytest
from figure_texts import assert_legible, legend_texts, painted, points_of

from mixerlab.records.names import AVERAGE, MIXERS
from mixerlab.sweeps.figures.by_task import by_task
from mixerlab.sweeps.figures.comparison import comparison
from mixerlab.sweeps.figures.curves import training_curves
from mixerlab.sweeps.figures.difficulty import difficulty, harder_set, lengths, setting_title
from mixerlab.sweeps.figures.heat_map import heat_map
from mixerlab.sweeps.figures.points import Scores, mean_point, seeds_point
from mixerlab.sweeps.figures.sheet import TWO_COLUMNS, WIDTHS, Layout, caption_of, save
from mixerlab.sweeps.figures.styles import brief_labels, short_labels, styles
from mixerlab.sweeps.figures.swept import learning_rates, score_by_key, score_by_size
from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.collect import collect
from mixerlab.sweeps.tables.columns import Column
from mixerlab.sweeps.tables.published import Pair
from mixerlab.sweeps.tables.swept import spread_out
from mixerlab.sweeps.tables.tables import task_table

ATTN, GDN = Column("attn"), Column("gdn")
ONE_COLUMN = Layout(WIDTHS[1])


def scores_of(results, layout=TWO_COLUMNS, selection="official"):
    frame = spread_out(collect(results))
    return Scores(frame, best_per_cell(frame, selection), selection, layout)


def all_figures(scores, results):
    keys = {key: None for column in scores.look for key, _ in column.values}
    made = [draw(scores) for draw in (by_task, score_by_size, heat_map, difficulty, lengths, learning_rates)]
    return [*made, *(score_by_key(scores, key) for key in keys), training_curves(scores, results)]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return fakes.add_three_mixers(tmp_path_factory.mktemp("results"))


@pytest.mark.parametrize(
    ("number", "width", "bare"),
    [
        (2, 3.25, False),
        (2, 5.5, True),
        *(
            pytest.param(number, width, bare, marks=pytest.mark.slow)
            for number, width, bare in ((5, 3.0, True), (5, 20.0, False), (15, 3.25, False), (15, 6.75, False))
        ),
    ],
)
def test_no_text_lies_over_another(tmp_path, number, width, bare):
    fakes.add_many_mixers(tmp_path, number, seeds=(0, 1))
    for figure in all_figures(scores_of(tmp_path, Layout(width, bare)), tmp_path):
        assert figure.get_size_inches()[0] == width
        assert_legible(figure)


@pytest.mark.parametrize("layout", [ONE_COLUMN, TWO_COLUMNS])
def test_long_names_of_columns_and_settings_are_legible(tmp_path, layout):
    parameters = {"num_train_examples": 100000, "seq_len": 32, "vocab_size": 8, "frac_noise": 0.25}
    long = ",".join(f"{key}={value}" for key, value in parameters.items())
    for mixer, width, task in itertools.product(("attn", "a_mixer_with_a_long_name"), (64, 128), ("icr", "own_task")):
        changed = {"model.d_model": width, "model.autoencoder_redraw_all": width > 64, "optimizer.name": "adamw"}
        fakes.add_run(tmp_path, [0.3, 0.9], lr=[1e-3, 2e-3], mixer=mixer, task=task, changed=changed)
        given = {"mixer": mixer, "task": task, "changed": changed, "setting": long, **parameters}
        fakes.add_run(tmp_path, [0.3, 0.9], lr=[1e-3, 2e-3], **given)
    for figure in all_figures(scores_of(tmp_path, layout), tmp_path):
        if figure is not None:
            assert_legible(figure)


def test_labels_say_once_what_columns_share_and_are_brief_beside_a_panel():
    columns = [Column("attn", (("model.d_model", width), ("trainer.epochs", "9"))) for width in ("64", "128")]
    texts = dict(zip(columns, ("attn, d_model=64", "attn, d_model=128"), strict=True))
    assert short_labels(columns) == (
        dict(zip(columns, ("attn, d_model=64", "attn, d_model=128"), strict=True)),
        "all: epochs=9",
    )
    pairs = (("optimizer.decayed", "matrices"), ("optimizer.head", "adam"))
    columns = [Column("attn", (("mixer.num_heads", "16"), *pairs)), Column("mamba", pairs[:1])]
    texts, told = brief_labels(columns)
    assert list(texts.values()) == ["attn (16, adam)", "mamba (-, -)"]
    assert told == "in brackets: num_heads, head; all: decayed=matrices"


@pytest.mark.parametrize("width", [-1.0, 0.0, 2.9, 21.0, float("inf"), float("nan")])
def test_a_width_that_no_figure_can_have(width):
    with pytest.raises(ValueError, match=rf"cannot be {width:g} inches wide: give 3 to 20, such as 5\.5"):
        Layout(width)


def test_a_bare_figure_keeps_its_caption(results):
    whole, bare = (by_task(scores_of(results, Layout(bare=bare))) for bare in (False, True))
    assert caption_of(whole) == caption_of(bare) != ""
    assert not bare.texts and bare.get_size_inches()[1] < whole.get_size_inches()[1]


def test_saved_as_picture_and_as_pdf(tmp_path, results):
    paths = save(by_task(scores_of(results)), tmp_path / "2605.29157", ("png", "pdf"))
    assert [path.name for path in paths] == ["2605.29157.png", "2605.29157.pdf"]  # a dot is no suffix
    assert [path.read_bytes()[:4] for path in paths] == [b"\x89PNG", b"%PDF"]


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


def test_means_are_those_of_the_tables(tmp_path):
    fakes.add_many_mixers(tmp_path, 5, seeds=(0, 1))
    fakes.add_run(tmp_path, [0.3, 0.9, "diverged", 0.5, 0.9, 0.1], mixer="attn", task="own_task", seed=[0, 1])
    scores = scores_of(tmp_path)
    for (task,), row in task_table(scores.cells).rows.items():
        for column, entry in row.items():
            point = scores.by_task[task][column]
            assert point.mean == (entry.mean if entry.mean is None else pytest.approx(entry.mean))
            assert dict(point.by_seed) == pytest.approx(dict(entry.by_seed)) and point.whole == entry.whole


def test_the_interval_of_a_mean_over_settings_with_other_seeds():
    three, single = seeds_point({0: 0.4, 1: 0.5, 2: 0.6}, whole=True), seeds_point({0: 0.9}, whole=True)
    assert three.interval == pytest.approx((0.5 - 4.303 * 0.1 / 3**0.5, 0.5 + 4.303 * 0.1 / 3**0.5))
    assert single.interval is None
    both = mean_point([three, single])  # the error of the single seed is not known
    assert both.is_bound and both.interval == pytest.approx((0.7 - 4.303 * 0.05 / 3**0.5, 0.7 + 4.303 * 0.05 / 3**0.5))
    two = seeds_point({0: 0.4, 1: 0.5}, whole=True)
    assert two.interval is None and two.seeds == [0.4, 0.5]
    assert not mean_point([two, seeds_point({}, whole=False)]).whole


@pytest.mark.parametrize("number", [3, 12])
def test_gaps_are_seen_in_bars_and_dots(tmp_path, number):
    """What misses a setting is hollow, and what has no score a grey ground, never a mark at zero."""
    mixers = ["attn", "gdn", *(f"mixer{i:02}" for i in range(number - 2))]
    for mixer in mixers:
        fakes.add_run(tmp_path, [0.8], lr=1e-3, mixer=mixer)
        if mixer != "attn":
            fakes.add_run(tmp_path, [0.6], lr=1e-3, mixer=mixer, setting="seq_len-256")
            fakes.add_run(tmp_path, [0.5], lr=1e-3, mixer=mixer, task="mem")
    figure = by_task(scores_of(tmp_path))
    assert {"incomplete mean", "no score"} <= set(legend_texts(figure))
    assert caption_of(figure).endswith("; one seed")
    shown = [panel.get_title() for panel in figure.axes] if number == 12 else figure.axes[0].get_xticklabels()
    assert [getattr(one, "get_text", lambda one=one: one)() for one in shown] == ["icr", "mem", AVERAGE]
    if number == 3:
        hollow = [bar for bar in figure.axes[0].patches if bar.get_facecolor() == (1, 1, 1, 1)]
        assert [bar.get_height() for bar in hollow] == [0.8, 0.8]  # in icr and in the average
    else:
        assert points_of(figure.axes[0], styles([ATTN])[ATTN]) == {(0.8, 0.0): True}


def test_difficulty_puts_the_baseline_at_its_value(results):
    figure = difficulty(scores_of(results))
    (panel,) = figure.axes  # mem has no axis here, icr has one
    look = scores_of(results).look
    assert (panel.get_title(), panel.get_xlabel(), panel.get_xscale()) == ("icr", "length (tokens)", "log")
    assert points_of(panel, look[ATTN]) == {(128, 0.9): False, (256, 0.8): False, (512, 0.6): False}
    crosses = [line for line in panel.lines if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses] == [[512], [512]]  # of parallax and novel, above the panel
    assert "no score" in legend_texts(figure)


def test_what_all_solve_is_named_and_not_drawn(tmp_path):
    for setting, accuracy in (("baseline", 0.99), ("seq_len-256", 1.0), ("vocab_size-32", 0.7)):
        fakes.add_run(tmp_path, [accuracy], lr=1e-3, setting=setting)
    figure = difficulty(scores_of(tmp_path))
    assert [panel.get_xlabel() for panel in figure.axes] == ["vocabulary size"]
    assert "not drawn, as all are above 0.98: icr (length)" in caption_of(figure)


def test_mixers_of_one_accuracy_are_all_seen_at_their_value(tmp_path):
    for mixer in MIXERS:
        for setting in ("baseline", "seq_len-256"):
            fakes.add_run(tmp_path, [0.9], lr=1e-3, mixer=mixer, setting=setting)
    scores = scores_of(tmp_path)
    figure = difficulty(scores)
    assert all(painted(figure, figure.axes[0], style.colour) > 10 for style in scores.look.values())
    assert {x for style in scores.look.values() for x, _ in points_of(figure.axes[0], style)} == {128, 256}


def test_lengths_trained_and_tested(tmp_path):
    fakes.add_run(tmp_path, [0.9], lr=1e-3)
    fakes.add_run(tmp_path, [0.8], lr=1e-3, setting="seq_len-256")
    fakes.add_run(tmp_path, [0.4], lr=1e-3, setting="test_seq_len=512", test_seq_len=512)
    scores = scores_of(tmp_path)
    trained, tested = lengths(scores).axes
    assert tested.get_xlabel().replace("\n", " ") == "test length (trained at 128)"
    assert list(points_of(trained, scores.look[ATTN])) == [(128, 0.9), (256, 0.8)]
    assert list(points_of(tested, scores.look[ATTN])) == [(128, 0.9), (512, 0.4)]


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
    assert learning_rates(Scores(fakes_of_one_rate, scores.cells, "official", TWO_COLUMNS)) is None


def test_a_rate_that_lost_seeds_is_hollow_and_one_of_few_settings_is_left_out(tmp_path):
    fakes.add_run(tmp_path, [0.2, 0.3, 0.2, "diverged"], lr=[1e-3, 5e-3], seed=[0, 1])
    fakes.add_run(tmp_path, [0.5, 0.5, 0.9] * 2, lr=[1e-3, 5e-3, 1e-2], seed=[0, 1], setting="seq_len-256")
    scores = scores_of(tmp_path)
    figure = learning_rates(scores)
    points = points_of(figure.axes[0], scores.look[ATTN])
    means = {x: points[x, y] for x, y in points if y in (pytest.approx(0.35), pytest.approx(0.4))}
    assert means == {1e-3: False, 5e-3: True}
    assert "without rates that only some have" in caption_of(figure)


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


def test_size_and_its_frontier(tmp_path):
    for mixer, size, accuracy in (("attn", 4096, 0.9), ("gdn", 1024, 0.7), ("mamba", 2048, 0.6)):
        fakes.add_run(tmp_path, [accuracy], {"state_size": size, "num_params": 10 * size}, mixer=mixer, lr=1e-3)
    scores = scores_of(tmp_path)
    state, parameters = score_by_size(scores).axes
    assert points_of(state, scores.look[ATTN]) == {(4096, 0.9): False}
    assert points_of(parameters, scores.look[GDN]) == {(10240, 0.7): False}
    (frontier,) = [line for line in state.lines if line.get_drawstyle() == "steps-post"]
    assert list(frontier.get_xdata()) == [1024, 4096]  # mamba is larger than gdn, and worse


def test_heat_map(results):
    icr, mem = heat_map(scores_of(results)).axes
    (picture,) = icr.images
    shown = np.ma.filled(picture.get_array(), np.nan)
    assert shown == pytest.approx(np.array([[0.9, 0.8, 0.6], [0.95, 0.85, np.nan], [0.7, 0.6, np.nan]]), nan_ok=True)
    assert [label.get_text() for label in icr.get_yticklabels()] == ["attn", "parallax", "novel"]
    assert [label.get_text() for label in icr.get_xticklabels()] == ["baseline", "length 256", "length 512"]
    assert mem.texts[0].get_text() == ".60"


def test_a_score_where_lower_is_better_and_that_is_no_accuracy(results):
    scores = scores_of(results)
    cells = scores.cells.assign(score="bits_per_byte", higher_is_better=False)
    cells["mean"] *= 4
    other = Scores(scores.frame, cells, "official", TWO_COLUMNS)
    assert by_task(other).axes[0].get_ylabel() == "bits_per_byte"
    assert heat_map(other).axes[0].images[0].norm.vmax == pytest.approx(3.8)


def test_ours_beside_published_numbers():
    pairs = [
        Pair("means", "icr", "attn", 0.9, 0.8, 1, 2),
        Pair("means", "icr", "gdn", 0.7, None, 0, 2),
        Pair("settings", "icr baseline", "attn", 0.6, 0.55, 1, 1, (0.5, 0.6)),
    ]
    figure = comparison(pairs, "clean", (1e-3, 5e-3), ONE_COLUMN)
    means, single = figure.axes
    look = styles([ATTN, GDN])
    assert points_of(means, look[ATTN])[0.8, 0.0] and not points_of(single, look[ATTN])[0.55, 0.0]
    published = [float(line.get_xdata()[0]) for line in means.lines if line.get_marker() == "|"]
    assert published == [0.9, 0.7]
    assert legend_texts(figure) == ["ours", "published", "incomplete mean", "no score", "seed"]
    assert caption_of(figure).endswith("chosen on validation; for each seed, among 1e-3, 5e-3")  # there are no whiskers
    assert_legible(figure)


def test_titles_of_settings():
    assert setting_title("icr", "baseline") == "icr"
    assert setting_title("icr", "num_train_examples=100000,test_seq_len=512") == "icr, examples 100k, tested at 512"
    assert setting_title("state_tracking", "S3-128") == "state_tracking, S3-128"
