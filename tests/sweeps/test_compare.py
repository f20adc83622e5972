"""Our numbers beside published ones: from each kind of source, complete or not, and what is refused."""

import json
import math

import fakes
import pytest
from figure_texts import assert_legible
from PIL import Image

from mixerlab.config.compose import compose
from mixerlab.config.settings import settings_of
from mixerlab.records import archive
from mixerlab.sweeps.figures.canvas import DOTS_PER_INCH, Layout
from mixerlab.sweeps.figures.comparison import STEP, scatter, side_by_side
from mixerlab.sweeps.report import compare
from mixerlab.sweeps.report.published import Pair, distance, is_far, pairs_of, read_published, scores_by_seed
from mixerlab.sweeps.report.report import report
from mixerlab.sweeps.tables.collect import best_per_cell, collect
from mixerlab.sweeps.tables.sources import rows_of

SETTINGS = ("baseline", "vocab_size-512", "vocab_size-1024", "vocab_size-2048", "vocab_size-4096", "vocab_size-8192")


@pytest.fixture
def results(tmp_path):
    """attn has all of mem, gdn half of it, and one level of the challenge."""
    for number, setting in enumerate(SETTINGS):
        fakes.add_run(tmp_path / "results", [0.1, 0.9 - 0.1 * number], lr=[1e-3, 5e-3], task="mem", setting=setting)
        if number < 3:
            fakes.add_run(tmp_path / "results", [0.1, 0.5], lr=[1e-3, 5e-3], mixer="gdn", task="mem", setting=setting)
    fakes.add_run(tmp_path / "results", [0.8], lr=[1e-3], task="icr_challenge", setting="256-512")
    fakes.add_run(
        tmp_path / "results", [0.1], lr=[1e-3], task="icr_challenge", setting="256-512,vocab_size=64", vocab_size=64
    )
    return tmp_path / "results"


@pytest.fixture
def published(tmp_path):
    path = tmp_path / "published.json"
    tables = {
        "source": "a paper",
        "over": {"mem": SETTINGS},
        "means": {"columns": ["attn", "gdn", "mesa"], "mem": [0.60, 0.5, 0.7]},
        "settings": {"columns": ["attn", "gdn"], "icr_challenge 256-512": [1.0, None]},
    }
    path.write_text(json.dumps(tables))
    return path


def test_pairs_from_every_source_are_the_same(results, published, tmp_path):
    archive.pack(results, tmp_path / "table.tar.xz")
    made = report(results, tmp_path / "report", selections=["official"])
    told = read_published(published)
    sources = results, tmp_path / "table.tar.xz", made.folder / "rows.csv"
    from_folder, from_archive, from_csv = (pairs_of(rows_of(source), told) for source in sources)
    assert from_folder == from_archive == from_csv
    assert [(pair.name, pair.mixer, pair.published, pair.done, pair.total) for pair in from_folder] == [
        ("mem", "attn", 0.6, 6, 6),
        ("mem", "gdn", 0.5, 3, 6),
        ("mem", "mesa", 0.7, 0, 6),
        ("icr_challenge 256-512", "attn", 1.0, 1, 1),
    ]
    ours = [pair.ours for pair in from_folder]
    assert ours == [pytest.approx(0.65), pytest.approx(0.5), None, pytest.approx(0.8)]


def test_each_seed_has_its_own_best_rate(tmp_path):
    rates = [1e-3, 5e-3]
    fakes.add_run(tmp_path, [1.0, 0.1, 0.2, 0.9], lr=rates, seed=[0, 1], task="mem", setting="baseline")
    fakes.add_run(tmp_path, [0.3], lr=[1e-3], seed=2, task="mem", setting="baseline")  # 5e-3 has not been run
    fakes.add_run(tmp_path, ["diverged", 0.5], lr=rates, seed=3, task="mem", setting="baseline")
    frame = collect(tmp_path)
    assert scores_by_seed(frame) == {("attn", "mem", "baseline"): {0: 1.0, 1: 0.9, 3: 0.5}}
    assert scores_by_seed(frame, rates=rates) == scores_by_seed(frame)
    assert scores_by_seed(frame, rates=[*rates, 5e-4]) == {}, "a rate is lacking"
    assert scores_by_seed(frame, rates=[1e-3]) == {("attn", "mem", "baseline"): {0: 1.0, 1: 0.2, 2: 0.3, 3: 0.0}}
    two_seeds = frame[frame["seed"] < 2]
    assert best_per_cell(two_seeds)["accuracy"].tolist() == [pytest.approx(0.6)]  # the report: one rate for all seeds


def test_a_seed_counts_if_one_configuration_has_all_rates(tmp_path):
    cell, rates = {"task": "mem", "setting": "baseline"}, [1e-4, 5e-4, 1e-3]
    fakes.add_run(tmp_path, [0.6, 0.5], lr=[5e-4, 1e-3], **cell)
    fakes.add_run(tmp_path, [0.4, 0.3], lr=[1e-4, 1e-3], num_heads=4, **cell)
    assert scores_by_seed(collect(tmp_path), rates=rates) == {}
    fakes.add_run(tmp_path, [0.7], lr=[5e-4], num_heads=4, **cell)
    assert scores_by_seed(collect(tmp_path), rates=rates) == {("attn", "mem", "baseline"): {0: 0.7}}


def test_configurations_and_mixers_without_published_numbers_are_told(tmp_path, published):
    for mixer, heads in (("attn", 8), ("attn", 4), ("gdn", 8), ("mine", 8)):
        fakes.add_run(tmp_path, [0.5], mixer=mixer, lr=1e-3, num_heads=heads, task="mem", setting="baseline")
    for heads in (8, 4):  # a task without published numbers
        fakes.add_run(tmp_path, [0.5], mixer="gdn", lr=1e-3, num_heads=heads, task="own", setting="baseline")
    text = compare.compare(tmp_path, published, tmp_path / "out")
    assert "Each seed has the best of several configurations of attn. Ours without a published number: mine." in text


def test_a_seed_that_diverged_at_all_rates_counts_as_0(tmp_path):
    rates = [1e-3, 5e-3]
    fakes.add_run(tmp_path, [0.9, 0.5, "diverged", "diverged"], lr=rates, seed=[0, 1], task="mem", setting="baseline")
    assert scores_by_seed(collect(tmp_path)) == {("attn", "mem", "baseline"): {0: 0.9, 1: 0.0}}


def test_only_complete_means_count(results, published):
    pairs = pairs_of(rows_of(results), read_published(published))
    assert distance(pairs) == (2, pytest.approx(((0.05**2 + 0.2**2) / 2) ** 0.5), None)
    assert distance([]) == (0, None, None)


def test_a_setting_of_another_yaml_completes_no_mean(tmp_path, published):
    """A user's `conf/task/mem.yaml` may have other settings, as many as the task's own."""
    for number, setting in enumerate((*SETTINGS[:-1], "vocab_size-300")):
        fakes.add_run(tmp_path, [0.5 + 0.1 * number], lr=[1e-3], task="mem", setting=setting)
    mem, *_ = pairs_of(rows_of(tmp_path), read_published(published))
    assert (mem.done, mem.total, mem.complete) == (5, 6, False)
    assert mem.ours == pytest.approx(0.7)


def test_the_papers_means_are_over_all_settings_of_their_tasks():
    told = read_published(compare.PUBLISHED / "parallax_paper.json")
    assert set(told["over"]) == set(told["means"]) - {"columns"}
    for task, over in told["over"].items():
        assert over == list(settings_of(compose(f"task={task}").task))


@pytest.mark.parametrize(
    ("difference", "far"), [(0.55 - 0.5, False), (0.5 - 0.55, False), (0.0501, True), (-0.06, True)]
)
def test_a_difference_is_far_by_more_than_rounding(difference, far):
    assert is_far(difference) == far


def test_the_rank_correlation_is_spearmans():
    ours, told = [0.1, 0.4, 0.2, 0.9], [0.2, 0.3, 0.4, 0.8]
    pairs = [Pair("means", "mem", "attn", b, a, 1, 1) for a, b in zip(ours, told, strict=True)]
    assert distance(pairs)[2] == pytest.approx(0.8)  # 1 - 6 sum d^2 / (n (n^2 - 1)), d = 0, 1, 1, 0


def test_command_line_writes_table_and_figure(results, published, tmp_path, capsys):
    out = tmp_path / "out"
    assert compare.main([str(results), "--published", str(published), "--out", str(out)]) == 0
    figures = {f"published{of}.{kind}" for of in ("", "_means", "_settings") for kind in ("png", "pdf")}
    assert {path.name for path in out.iterdir()} == {"published.md", "published.csv"} | figures
    text = (out / "published.md").read_text()
    assert text in capsys.readouterr().out
    assert r"| mem | 0.650 (0.600) +0.050 | 0.500\* (3/6) (0.500) +0.000 | - (0.700) |" in text
    assert "Complete: 1 of 3. RMSE 0.050. Off by more than 0.05: " in text
    lines = (out / "published.csv").read_text().splitlines()
    assert lines[3] == "means,mem,mesa,0.7,,,0,6" and len(lines) == 5


def test_bars_are_ours_and_lines_the_published_numbers(results, published):
    pairs = [pair for pair in pairs_of(rows_of(results), read_published(published)) if pair.of == "means"]
    figure = side_by_side(pairs, "official", [5e-3, 5e-4])
    assert figure.texts[1].get_text().endswith("for each seed, among 5e-3, 5e-4")
    (panel,) = figure.axes
    assert panel.get_title() == "mem"
    heights = [bar.get_height() for bar in panel.patches]
    assert heights == [pytest.approx(0.65), pytest.approx(0.5)]  # mesa has none: a cross
    assert panel.patches[1].get_facecolor()[:3] == (1, 1, 1)  # gdn misses settings
    lines = {tuple(line.get_xdata()): line.get_ydata()[0] for line in panel.lines if len(line.get_xdata()) == 2}
    assert lines == {(-0.45, 0.45): 0.6, (0.55, 1.45): 0.5, (1.55, 2.45): 0.7}


def test_a_dot_marks_each_seed_of_a_setting(tmp_path):
    fakes.add_run(tmp_path, [0.8, 0.4], seed=[0, 1], lr=[1e-3], task="mem", setting="baseline")
    published = {"settings": {"columns": ["attn", "gdn"], "mem baseline": [0.7, 0.5]}}
    pairs = pairs_of(collect(tmp_path), published)
    assert [pair.by_seed for pair in pairs] == [(0.8, 0.4), ()]
    (panel,) = side_by_side(pairs, "official").axes
    (dots,) = (line for line in panel.lines if line.get_marker() == "o")
    assert list(dots.get_ydata()) == [0.8, 0.4] and len(set(dots.get_xdata())) == 2


def test_points_at_one_place_are_all_seen():
    pairs = [Pair("settings", f"icr {n}", mixer, 1.0, 1.0, 1, 1) for n in range(6) for mixer in ("attn", "gdn")]
    pairs.append(Pair("settings", "icr", "attn", 0.5, 0.25, 1, 1))
    figure = scatter(pairs, "clean")
    places = [
        (line.get_xdata()[0], line.get_ydata()[0]) for line in figure.axes[0].lines if line.get_marker() != "None"
    ]
    assert len(places) == 13 and places[0] == (1.0, 1.0) and places[-1] == (0.5, 0.25)
    apart = [math.dist(one, other) for number, one in enumerate(places) for other in places[number + 1 :]]
    assert min(apart) > 0.99 * STEP and all(math.dist(place, (1.0, 1.0)) < 0.07 for place in places[:-1])
    under = figure.texts[1].get_text().replace("\n", " ")
    assert figure.get_suptitle() == "Ours against the published accuracy" and "chosen on validation" in under
    assert "points that would hide each other are moved by up to 0.05" in under
    assert "moved" not in scatter(pairs[-1:], "clean").texts[1].get_text()


def test_the_table_has_no_minus_zero_and_no_empty_part():
    means = [Pair("means", "mem", "attn", 0.7, None, 0, 6)]
    text = compare.markdown([*means, Pair("settings", "icr 1", "attn", 0.9, 0.8999, 1, 1)], "a paper")
    assert "| icr 1 | 0.900 (0.900) +0.000 |" in text and "Means" not in text
    assert "None of these published numbers has a counterpart of ours: " in compare.markdown(means, "a paper")


def test_another_task_of_ours_is_read_as_a_published_one(results, published, tmp_path, capsys):
    fakes.add_run(results, [0.9], lr=[1e-3], task="icr_vocab_challenge", setting="256-512")
    run = [str(results), "--published", str(published), "--out", str(tmp_path / "out"), "--reading"]
    assert compare.main([*run, "icr_challenge=icr_vocab_challenge"]) == 0
    said = capsys.readouterr().out
    assert "icr_challenge 256-512 | 0.900 (1.000) -0.100" in said
    assert "Our icr_vocab_challenge is read as its icr_challenge." in said
    for reading, message in (
        ("icr_challenge", "give PUBLISHED=OURS"),
        ("icr_challenge=mqar", "no runs of mqar"),
        ("nope=icr", "there is no published number of nope; there are of "),
    ):
        assert compare.main([*run, reading]) == 1
        assert message in capsys.readouterr().err


def test_a_cell_without_a_published_rate_has_no_score(results, published):
    frame, told = rows_of(results), read_published(published)

    def done(rates, **kwargs):
        pairs = pairs_of(frame, told | {"rates": rates}, **kwargs)
        return {(pair.name, pair.mixer): pair.done for pair in pairs}["icr_challenge 256-512", "attn"]

    (rate,) = set(frame[frame["task"] == "icr_challenge"]["lr"])
    assert done([rate]) == done([rate, 2 * rate], all_rates=True) == 1 and done([rate, 2 * rate]) == 0


def test_a_rate_beyond_the_published_ones_counts_only_if_asked(tmp_path, capsys):
    fakes.add_run(tmp_path, [0.5, 0.9], lr=[1e-3, 1e-2], task="icr_challenge", setting="256-512")
    told = {"source": "x", "rates": [1e-3], "settings": {"columns": ["attn"], "icr_challenge 256-512": [0.4]}}
    (tmp_path / "p.json").write_text(json.dumps(told))
    run = [str(tmp_path), "--published", str(tmp_path / "p.json"), "--out", str(tmp_path / "out")]
    assert compare.main(run) == 0
    said = capsys.readouterr().out
    assert "best learning rate of 0.001," in said and "0.500 (0.400) +0.100" in said
    assert compare.main([*run, "--all-rates"]) == 0
    assert "0.900 (0.400) +0.500" in capsys.readouterr().out


def test_the_papers_numbers_are_75_and_of_our_tasks():
    told = read_published(compare.PUBLISHED / "parallax_paper.json")
    numbers = {of: sum(len(v) for k, v in told[of].items() if k != "columns") for of in ("means", "settings")}
    assert numbers == {"means": 30, "settings": 45}
    frame = rows_of(compare.ROOT / "results" / "table" / "rows.csv")
    pairs = [pair for pair in pairs_of(frame, told) if pair.of == "means"]
    number, rmse, _ = distance(pairs)
    assert (number, rmse) == (30, pytest.approx(0.121, abs=5e-4))  # what results/README.md says


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no table of published numbers"),
        ('{"means": {}}', "is no table of published numbers"),
        ('{"source": "x", "means": {"columns": ["attn"], "mem": []}}', "means, mem: 0 numbers for its columns"),
        (
            '{"source": "x", "over": {"mem": []}, "means": {"columns": ["a"], "mem": [12]}}',
            "means, mem: 12 must be an accuracy in [0, 1], or null",
        ),
        ('{"source": "x", "rates": 3}', "rates must be a list of learning rates"),
        ('{"source": "x", "rates": []}', "rates must be a list of learning rates"),
        (
            '{"source": "x", "over": {}, "means": {"columns": ["a"], "mem": [1]}}',
            "over, mem: it must list the settings",
        ),
    ],
)
def test_what_is_no_published_table_is_refused(results, tmp_path, capsys, content, message):
    path = tmp_path / "p.json"
    path.write_text(content)
    assert compare.main([str(results), "--published", str(path), "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_the_usage_has_the_source_before_the_options(results, published, capsys):
    with pytest.raises(SystemExit):
        compare.main(["--published", str(published), str(results)])
    assert "compare SOURCE [OPTION ...]\n" in capsys.readouterr().err


def test_what_holds_no_runs_is_refused(tmp_path, published):
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    for source, message in (
        (tmp_path / "rows.csv", "is no rows.csv of a report"),
        (tmp_path, "holds no runs"),
        (tmp_path / "none.tar.xz", "cannot be read"),
    ):
        with pytest.raises(ValueError, match=message):
            rows_of(source)


@pytest.mark.parametrize(("width", "per_line"), [(3.0, 2), (3.25, 2), (5.5, 3), (6.75, 3)])
def test_figures_of_any_width_without_headings(results, published, tmp_path, width, per_line):
    arguments = [str(results), "--published", str(published), "--out", str(tmp_path)]
    assert compare.main([*arguments, "--width", str(width), "--bare"]) == 0
    captions = dict(
        caption.split(": ", 1) for caption in (tmp_path / "published_captions.md").read_text().split("\n\n")
    )
    assert list(captions) == ["`published`", "`published_means`", "`published_settings`"]
    assert captions["`published`"].startswith("Ours against the published accuracy: ")
    assert captions["`published_means`"].startswith("Ours beside the published accuracy: ")
    assert all("learning rate and checkpoint chosen on test, for each seed" in text for text in captions.values())
    for name, inches in (("published", min(width, 3.25)), ("published_means", width), ("published_settings", width)):
        with Image.open(tmp_path / f"{name}.png") as drawn:
            assert drawn.width == pytest.approx(inches * DOTS_PER_INCH, abs=1)
    pairs = [Pair("settings", f"icr {n}", "attn", 1.0, 1.0, 1, 1) for n in range(6)]
    for draw in (scatter, side_by_side):
        figure = draw(pairs, "official", layout=Layout(width, bare=True))
        assert not figure.texts
        assert_legible(figure)
    assert len({panel.get_position().x0 for panel in figure.axes}) == per_line
    assert compare.main(arguments) == 0
    assert not (tmp_path / "published_captions.md").exists()


def test_a_width_that_no_figure_can_have_is_one_line(results, published, tmp_path, capsys):
    assert compare.main([str(results), "--published", str(published), "--out", str(tmp_path), "--width", "2"]) == 1
    assert capsys.readouterr().err == "error: a figure cannot be 2 inches wide: give 3 to 20, such as 5.5\n"


def test_without_any_published_setting_nothing_is_drawn(results, published, tmp_path, capsys):
    arguments = ["--published", str(published), "--out", str(tmp_path / "out")]
    assert compare.main([str(results), *arguments]) == 0
    fakes.add_run(tmp_path / "others", [0.5], lr=[1e-3], task="sc")
    capsys.readouterr()
    assert compare.main([str(tmp_path / "others"), *arguments]) == 0
    assert (
        "None of these published numbers has a counterpart of ours: mem, icr_challenge 256-512."
        in capsys.readouterr().out
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"published.md", "published.csv"}
