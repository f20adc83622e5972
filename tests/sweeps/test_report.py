"""`python -m mixerlab.sweeps.report.report`, and what a sweep calls at its end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import fakes
import pandas as pd
import pytest

from mixerlab.records.files import run_folder
from mixerlab.sweeps.report import report as reports
from mixerlab.sweeps.tables.collect import collect
from mixerlab.sweeps.tables.sources import read_rows

REPOSITORY = Path(__file__).parents[2]
# The figures have tests of their own; drawing them is nearly all the time of a report.
FIGURES = ("accuracy", "settings", "state_size", "lengths", "difficulty", "learning_rates", "training_curves")


@pytest.fixture
def no_drawing(monkeypatch):
    monkeypatch.setattr(reports.canvas, "save", lambda figure, stem, *_: [stem.with_suffix(".png")])


@pytest.fixture
def results(tmp_path):
    for mixer, top in (("attn", 0.8), ("gdn", 0.9)):
        fakes.add_run(tmp_path, [0.3, top, 0.5], mixer=mixer)
        fakes.add_run(tmp_path, [0.3, top - 0.2, 0.5], mixer=mixer, setting="seq_len-256")
    return tmp_path


def test_command_line_writes_everything(results):
    command = [sys.executable, "-m", "mixerlab.sweeps.report.report", str(results), "--selection", "official"]
    command += ["--format", "png", "pdf"]
    headless = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "MPLBACKEND")}
    done = subprocess.run(command, cwd=REPOSITORY, env=headless, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "| icr  | 0.700 | 0.800 |" in done.stdout
    assert str(results / "report") in done.stdout
    written = {str(path.relative_to(results / "report")) for path in (results / "report").rglob("*.*")}
    tables = {f"official/{name}.{kind}" for name in ("accuracy", "settings") for kind in ("md", "csv", "tex")}
    figures = {f"official/{name}.{kind}" for name in FIGURES for kind in ("png", "pdf")}
    solved = {f"official/{name}" for name in ("solved.md", "solved.csv", "accuracy_intervals.csv")}
    assert written == {"rows.csv", ".claim"} | tables | figures | solved
    assert all(path.stat().st_size > 0 for path in (results / "report").rglob("*.*"))
    rows = pd.read_csv(results / "report" / "rows.csv")
    assert len(rows) == 12
    assert rows.groupby("mixer")["official_accuracy"].max().to_dict() == {"attn": 0.8, "gdn": 0.9}


def test_names_that_look_like_numbers_or_gaps_come_back_from_rows_csv(results, no_drawing):
    """A name may be `NA` or `1e3`, and a hash of eight digits may be a number too large for a float."""
    for mixer in ("NA", "None", "1e3", "1000"):
        fakes.add_run(results, [0.3, 0.4, 0.5], mixer=mixer, setting="0512")
    made = reports.report(results, selections=("official",))
    text = ["run_id", "mixer", "task", "setting", "optimizer", "status", "config"]
    path = made.folder / "rows.csv"
    pd.read_csv(path, dtype=str, keep_default_na=False).assign(config="1234e567").to_csv(path, index=False)
    frame = read_rows(path)
    assert frame[text].equals(collect(results)[text].assign(config="1234e567"))
    again = reports.report(path, results / "again", selections=("official",)).text
    assert again == made.text


def test_command_line_says_where_it_looked(tmp_path, capsys):
    assert reports.main([str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err == (
        f"error: there is no folder or file {tmp_path}/nowhere: name a results folder, an archive or a rows.csv\n"
    )
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("source", ["", "report/rows.csv"])
@pytest.mark.parametrize("option", [("--mixer", "attn"), ("--task", "icr"), ("--where", "seed=0"), ("--by", "mixer")])
def test_a_source_behind_an_option_is_not_taken_for_one_of_its_values(results, no_drawing, capsys, option, source):
    if source:
        reports.report(results)
    path = str(results / source)
    with pytest.raises(SystemExit) as stopped:
        reports.main([*option, path])
    message = capsys.readouterr().err.splitlines()[-1]
    assert stopped.value.code == 2
    assert f"{option[0]} took {path} as one of its values" in message
    assert f"give it first: mixerlab report {path} {option[0]} ..." in message
    assert reports.main([path, *option]) == 0 and reports.main([*option, "--", path]) == 0


def test_a_value_may_be_longer_than_the_name_of_a_file(results, no_drawing, monkeypatch, capsys):
    monkeypatch.chdir(results)
    assert reports.main(["--where", "mixer.layers=" + 100 * "attn,"]) == 1
    assert "there is no folder or file results" in capsys.readouterr().err


def test_a_source_behind_formats_is_not_taken_for_one(results, capsys):
    with pytest.raises(SystemExit):
        reports.main(["--format", "pdf", str(results)])
    usage, message = capsys.readouterr().err.splitlines()
    assert usage == "usage: mixerlab report [SOURCE] [OPTION ...]"
    assert message.endswith(f"--format: {results} is not one of png, pdf, svg; SOURCE comes before the options")


@pytest.mark.parametrize(
    ("options", "width"),
    [((), 6.75), (("--columns", "1"), 3.25), (("--columns", "2"), 6.75), (("--width", "5.5"), 5.5)],
)
def test_the_width_of_figures(results, monkeypatch, options, width):
    widths = set()

    def save(figure, stem, *_):
        widths.add(figure.get_size_inches()[0])
        return [stem.with_suffix(".png")]

    monkeypatch.setattr(reports.canvas, "save", save)
    assert reports.main([str(results), *options]) == 0
    assert widths == {width}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--width", "5.5in"), "argument --width: invalid float value: '5.5in'"),
        (("--columns", "2", "--width", "5.5"), "argument --width: not allowed with argument --columns"),
    ],
)
def test_a_wrong_width(results, capsys, options, told):
    with pytest.raises(SystemExit):
        reports.main([str(results), *options])
    assert capsys.readouterr().err.splitlines()[-1].endswith(told)
    assert not (results / "report").exists()


def test_a_width_in_points(results, capsys):
    assert reports.main([str(results), "--width", "397"]) == 1
    assert capsys.readouterr().err == "error: a figure cannot be 397 inches wide: give 3 to 20, such as 5.5\n"
    assert not (results / "report").exists()


def test_a_bare_report(results, monkeypatch):
    titles = []

    def save(figure, stem, *_):
        titles.extend(text.get_text() for text in figure.texts)
        return [stem.with_suffix(".png")]

    monkeypatch.setattr(reports.canvas, "save", save)
    captions = results / "report/official/captions.md"
    for options in (("--bare",), ()):
        titles.clear()
        assert reports.main([str(results), *options]) == 0
        assert captions.exists() == bool(options)
        if options:
            assert "`learning_rates`: Accuracy by learning rate: mean over the settings" in captions.read_text()
        latex = (results / "report/official/accuracy.tex").read_text()
        assert (bool(titles), r"\parbox" in latex) == (not options, not options)
        assert "One seed: nothing is bold" in latex


def test_a_page_needs_the_titles_of_its_figures(results, capsys):
    assert reports.main([str(results), "--bare", "--html"]) == 1
    assert capsys.readouterr().err.endswith("figures on the page of --html need: give one of the two\n")
    assert not (results / "report").exists()


def test_a_mixer_that_is_called_as_a_results_folder(results, no_drawing, monkeypatch, capsys):
    """`mixerlab report --mixer gdn` may mean the mixer or the folder; with SOURCE it can only be the mixer."""
    fakes.add_run(results / "gdn", [0.3, 0.4, 0.5])
    monkeypatch.chdir(results)
    with pytest.raises(SystemExit):
        reports.main(["--mixer", "gdn"])
    assert "if not, give SOURCE too: mixerlab report results --mixer ..." in capsys.readouterr().err
    assert reports.main([".", "--mixer", "gdn"]) == 0


def test_a_single_run_is_no_results_folder(results, capsys):
    run = next(results.glob("runs/*"))
    assert reports.main([str(run)]) == 1
    assert capsys.readouterr().err == f"error: {run} is a single run: name its results folder, {results}\n"


def test_only_unreadable_records(tmp_path):
    broken = run_folder(tmp_path, "broken")
    broken.mkdir(parents=True)
    (broken / "record.json").write_text("{")
    with pytest.raises(ValueError, match=rf"no records in .*unreadable: {broken}/record\.json"):
        reports.report(tmp_path)


def test_a_report_does_not_write_over_the_rows_that_it_reads(results, tmp_path, no_drawing):
    rows = reports.report(results).folder / "rows.csv"
    content = rows.read_bytes()
    with pytest.raises(ValueError, match=r"rows.csv is what the report would write over: give another --out"):
        reports.report(rows, rows.parent, where=["seed=0"])
    assert rows.read_bytes() == content
    assert reports.report(rows).folder == rows.parent / "report"


def test_files_of_these_names_that_no_report_has_written_stay(results, tmp_path, no_drawing):
    mine = tmp_path / "out" / "report.html"
    mine.parent.mkdir()
    mine.write_text("mine")
    assert not reports.report(results, mine.parent).removed and mine.read_text() == "mine"


def test_both_selections_and_another_folder(results, tmp_path, no_drawing, capsys):
    out = tmp_path / "elsewhere" / "report"
    assert reports.main([str(results), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.index("## accuracy, official selection") < printed.index("## accuracy, clean selection")
    assert (out / "clean/settings.tex").exists()
    assert not (results / "report").exists() and "removed" not in printed
    assert reports.main([str(results), "--out", str(out), "--selection", "official"]) == 0
    assert "removed, as they were of an earlier report: clean/" in capsys.readouterr().out


def test_filters(results, no_drawing):
    fakes.add_run(results, [0.3, 0.4, 0.5], mixer="gdn", task="mem")
    made = reports.report(results, mixers=["gdn"], tasks=["icr"], selections=("official",))
    assert "| task |   gdn |" in made.text
    assert "attn" not in made.text
    assert "mem" not in made.text
    with pytest.raises(ValueError, match=r"no records of mixer mesa: there are attn, gdn"):
        reports.report(results, mixers=["gdn", "mesa"])


def test_unreadable_records_are_in_the_notes_whatever_the_filter(results, no_drawing):
    broken = run_folder(results, "broken")
    broken.mkdir()
    (broken / "record.json").write_text("{")
    assert f"- unreadable: {broken}/record.json" in reports.report(results, mixers=["gdn"]).text


def test_a_sweep_shows_its_missing_cells(results, no_drawing):
    mine = fakes.add_run(results, [0.3, 0.4, 0.5], mixer="mesa")
    cells = (("icr", "baseline"), ("icr", "seq_len-256"), ("mem", "baseline"))
    configs = fakes.by_run_id(*(fakes.config(mixer="mesa", task=task, setting=setting) for task, setting in cells))
    assert mine in configs
    made = reports.report(results, configs=configs, selections=("official",))
    assert "| icr  | 0.500* (1/2) †1 |" in made.text
    assert "| mem  |         missing |" in made.text
    assert "- mesa: missing on icr (seq_len-256), mem (baseline)." in made.text
    assert "attn" not in made.text


def test_a_sweep_of_which_nothing_is_left(tmp_path, no_drawing):
    made = reports.report(tmp_path, configs=fakes.by_run_id(fakes.config()), selections=("clean",))
    assert "| icr  | missing |" in made.text


def test_the_harder_set_has_its_own_table_and_no_part_in_the_average(results, no_drawing):
    fakes.add_run(results, [0.0, 0.1, 0.0], mixer="gdn", task="icr_challenge", setting="1024-2048")
    fakes.add_run(results, [0.0, 0.2, 0.0], mixer="gdn", task="icr_challenge", setting="256-512", seq_len=2048)
    fakes.add_run(results, [0.3, 0.4, 0.3], mixer="gdn", task="mem")
    made = reports.report(results, selections=("official",))
    accuracy, challenge = made.text.split("## challenge")
    assert "icr_challenge" not in accuracy.split("\n\n")[1]
    assert "| Avg  |" in accuracy
    assert " 0.600 |" in accuracy  # gdn: (0.8 + 0.4) / 2
    assert challenge.index("256-512") < challenge.index("1024-2048")
    assert "Avg" not in challenge


def test_own_sizes_are_listed_but_part_of_no_mean(results):
    fakes.add_run(results, [0.9, 1.0, 0.9], mixer="gdn", setting="seq_len=32,vocab_size=8", seq_len=32)
    made = reports.report(results, selections=("official",), html=True)
    of_means, of_settings = (results / "report/report.html").read_text().split("<h3>")[1:3]
    counted, listed = '<tr class="chosen"><td>seq_len=32,vocab_size=8', "<td>seq_len=32,vocab_size=8"
    assert of_means.count(listed) == 3 and counted not in of_means
    assert of_settings.count(listed) == 3 and of_settings.count(counted) == 1
    assert "| icr  | 0.700 | 0.800 |" in made.text
    assert "- icr seq_len=32,vocab_size=8: own sizes, left out of the means." in made.text
    assert "| icr  | seq_len=32,vocab_size=8 |" in (results / "report/official/settings.md").read_text()


def test_one_size_of_ones_own_is_part_of_no_mean_either(results, no_drawing):
    fakes.add_run(results, [0.9, 1.0, 0.9], mixer="gdn", setting="seq_len=32", seq_len=32)
    made = reports.report(results, selections=("official",))
    assert "| icr  | 0.700 | 0.800 |" in made.text
    assert "- icr seq_len=32: own sizes, left out of the means." in made.text


def test_a_report_replaces_the_one_before(results, no_drawing):
    fakes.add_run(results, [0.0, 0.1, 0.0], mixer="gdn", task="icr_challenge", setting="1024-2048")
    reports.report(results)
    folder = results / "report"
    (folder / "official/challenge.txt").write_text("mine")
    assert (folder / "official/challenge.md").exists() and (folder / "clean/accuracy.md").exists()
    made = reports.report(results, selections=("official",), tasks=("icr",))
    assert {folder / "official/challenge.md", folder / "clean/accuracy.md"} <= set(made.removed)
    assert not any(path.exists() for path in made.removed) and not (folder / "clean").exists()
    told = made.what_was_removed()
    assert told.startswith("removed, as they were of an earlier report: official/") and told.endswith(" more")
    assert (folder / "official/accuracy.md").exists() and (folder / "official/challenge.txt").exists()


def test_runs_by_several_versions_of_the_code_are_noted(results, no_drawing):
    paths = sorted(results.glob("runs/*/record.json"))
    mixer = json.loads(paths[0].read_text())["rows"][0]["mixer"]
    records = [json.loads(path.read_text()) for path in paths]
    own = [place for place, record in enumerate(records) if record["rows"][0]["mixer"] == mixer]
    assert len(own) > 1
    for versions, noted in ((("0123", "0123"), False), (("0123", "89ab"), True)):
        for place, version in zip(own, versions, strict=False):
            records[place]["provenance"]["code_version"] = {"mixer": version, "task": "4567"}
            paths[place].write_text(json.dumps(records[place]))
        text = reports.report(results, selections=("official",)).text
        assert (f"- mixer {mixer}: its code changed between these runs (2 versions)." in text) == noted


def test_own_sizes_alone_are_a_table(tmp_path, no_drawing):
    fakes.add_run(tmp_path, [0.9, 1.0, 0.9], setting="seq_len=32,vocab_size=8")
    made = reports.report(tmp_path, selections=("official",))
    assert "| icr  | 1.000 |" in made.text
    assert "own sizes" not in made.text
