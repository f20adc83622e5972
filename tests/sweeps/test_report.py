"""`mixerlab report`, and what a sweep calls at its end: from a source to files."""

import shutil

import fakes
import pytest
from matplotlib.figure import Figure

from mixerlab.records.files import run_folder
from mixerlab.records.named import write_sweep
from mixerlab.sweeps.report import report as reports
from mixerlab.sweeps.tables.collect import collect, read_rows


@pytest.fixture(autouse=True)
def one_small_figure(monkeypatch):
    """Drawing is nearly all the time of a report, and has tests of its own."""

    def report_figures(*args, **kwargs):
        figure = Figure(figsize=(1, 1))
        figure.set_label("A caption")
        yield "accuracy", figure

    monkeypatch.setattr(reports, "report_figures", report_figures)


@pytest.fixture
def results(tmp_path):
    for mixer, top in (("attn", 0.8), ("gdn", 0.9)):
        fakes.add_run(tmp_path, [0.3, top, 0.5], mixer=mixer)
        fakes.add_run(tmp_path, [0.3, top - 0.2, 0.5], mixer=mixer, setting="seq_len-256")
    return tmp_path


def reported(capsys, *arguments):
    """What is printed by a report that is written."""
    reports.main([*map(str, arguments), "--selection", "official"])
    return capsys.readouterr().out


def table_of(text, name="accuracy"):
    """Header and rows of a printed table."""
    lines = text[text.index(f"## {name},") :].split("\n\n")[1].splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in (lines[0], *lines[2:])]


def test_a_report_has_rows_tables_and_figures_of_both_selections(results, capsys):
    reports.main([str(results), "--format", "png", "pdf", "--width", "5.5"])
    printed = capsys.readouterr().out
    assert table_of(printed) == [["task", "attn", "gdn"], ["icr", "0.700", "0.800"]]
    assert printed.index("## accuracy, official") < printed.index("## accuracy, clean") and str(results) in printed
    folder = results / "report"
    written = {str(path.relative_to(folder)) for path in folder.rglob("*.*")}
    kinds = ("md", "csv", "tex")
    expected = {f"{name}.{kind}" for name in ("accuracy", "settings") for kind in kinds}
    expected |= {"solved.md", "captions.md", "accuracy.png", "accuracy.pdf"}
    expected = {f"{selection}/{name}" for selection in ("official", "clean") for name in expected}
    assert written == expected | {"rows.csv", "written.json", ".claim"}
    assert all(path.stat().st_size for path in folder.rglob("*.*") if path.name != ".claim")
    assert len(read_rows(folder / "rows.csv")) == 12


def test_a_table_is_the_reports_as_a_frame(results, capsys):
    _, *rows = table_of(reported(capsys, results))
    frame = reports.table(results)
    assert frame.reset_index().to_numpy().tolist() == rows == [["icr", "0.700", "0.800"]]
    assert list(frame.columns) == ["attn", "gdn"] and frame.attrs["notes"]
    settings = reports.table(results, "settings", where=["mixer=gdn"])
    assert settings.loc[("icr", "baseline"), "gdn"] == "0.900"
    with pytest.raises(ValueError, match="accuracy, settings"):
        reports.table(results, "challenge")
    with pytest.raises(ValueError, match="selection='best': choose official or clean"):
        reports.table(results, selection="best")


def test_a_report_from_rows_and_from_an_archive_is_the_same(results, tmp_path, capsys):
    fakes.pack(results, tmp_path / "all.tar.xz")
    text = reports.report([results], results / "report")
    assert reports.report([results / "report/rows.csv"], tmp_path / "a") == text
    assert reports.report([tmp_path / "all.tar.xz"], tmp_path / "b") == text
    rows = results / "report/rows.csv"
    content = rows.read_bytes()
    with pytest.raises(ValueError, match="would write over"):
        reports.report([rows], rows.parent, where=["seed=0"])
    assert rows.read_bytes() == content and str(rows.parent / "report") in reported(capsys, rows)


def test_the_folder_of_a_report_is_refused_and_its_rows_are_named(results):
    reports.main([str(results)])
    with pytest.raises(ValueError, match=rf"^{results / 'report'} is no .* runs/: .* rows\.csv"):
        reports.main([str(results / "report")])


def test_options_choose_what_is_shown(results, capsys):
    fakes.add_run(results, [0.3, 0.4, 0.5], mixer="gdn", task="mem")
    fakes.add_run(results, [0.3, 0.95, 0.5], mixer="gdn", changed={"model.d_model": 64})
    run_folder(results, "broken").mkdir()
    (run_folder(results, "broken") / "record.json").write_text("{")
    text = reported(capsys, results, "--where", "mixer=gdn", "task=icr")
    assert table_of(text)[0] == ["task", "gdn, d_model=64", "gdn, d_model=128"]
    assert str(run_folder(results, "broken")) in text  # which may be any of them
    wide = reported(capsys, results, "--where", "model.d_model=128", "task.name=icr")
    assert table_of(wide) == [["task", "attn", "gdn"], ["icr", "0.700", "0.800"]]
    assert table_of(reported(capsys, results, "--by", "mixer", "--where", "task=icr"))[1] == ["icr", "0.700", "0.825"]
    for wrong in ("--where mixer=mesa", "--where model.d_model=7", "--by model.d_modl", "--width 397"):
        with pytest.raises(ValueError, match=wrong.replace("=", " ").split()[-1]):
            reports.main([str(results), *wrong.split()])


def test_the_runs_of_one_sweep_with_missing_ones_and_no_others(results, capsys):
    settings = ("baseline", "seq_len-256", "seq_len-512")
    write_sweep(results, "mine", fakes.by_run_id(*(fakes.config(setting=setting) for setting in settings)))
    text = reported(capsys, results, "--sweep", "mine")
    assert table_of(text) == [["task", "attn"], ["icr", "0.700 * (2/3)"]] and "missing on icr (seq_len-512)" in text
    assert (results / "sweeps/mine/report/official/accuracy.png").exists() and not (results / "report").exists()
    shutil.rmtree(results / "runs")
    (results / "runs").mkdir()
    assert table_of(reported(capsys, results, "--sweep", "mine"))[1] == ["icr", "missing (0/3)"]
    with pytest.raises(ValueError, match="mine"):
        reports.main([str(results), "--sweep", "nope"])


def test_a_report_of_several_sources_counts_a_run_once_where_it_is_finished(results, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(results / "runs", other / "runs")
    run_id = fakes.add_run(other, [0.3, 1.0, 0.5], mixer="mesa")
    shared = run_folder(results, fakes.run_id(fakes.config(mixer="gdn")))
    (shared / "record.json").unlink()
    fakes.pack(other, tmp_path / "other.tar.xz")
    for source in (other, tmp_path / "other.tar.xz"):
        text = reported(capsys, results, source)
        assert table_of(text)[0] == ["task", "attn", "gdn", "mesa"] and table_of(text)[1][1:3] == ["0.700", "0.800"]
    rows = read_rows(results / "report/rows.csv")
    assert len(rows) == 15 and run_id in set(rows["run_id"]) and set(rows["status"]) == {"finished"}
    for more in ([str(results / "report/rows.csv")], [str(results), "--sweep", "mine"]):
        with pytest.raises(ValueError, match=r"rows\.csv|--sweep mine"):
            reports.main([str(other), *more])


def test_a_run_that_several_sources_have_trained_is_that_of_the_first_and_the_others_are_named(tmp_path, caplog):
    """The scores before and after a change of a mixer's code, in two folders, looked like one."""
    for name, score in (("before", 0.3), ("after", 0.6)):
        run_id = fakes.add_run(tmp_path / name, [score], lr=1e-3)
        fakes.add_run(tmp_path / name, [0.5], lr=1e-3, mixer="gdn")
    shutil.copytree(tmp_path / "before", tmp_path / "copy")
    frame = collect(tmp_path / "before", more=[tmp_path / "after", tmp_path / "copy"])
    assert sorted(frame["official_accuracy"]) == [0.3, 0.5]
    (warning,) = caplog.messages
    assert warning.endswith(f" {run_id} of {tmp_path / 'after'}")


def test_what_has_no_part_in_means(results, capsys):
    """The harder set, which has a table of its own; sizes of one's own; test rows of another length."""
    for task, setting, score in (
        ("icr_challenge", "1024-2048", 0.1), ("icr_challenge", "256-512", 0.2), ("mem", "baseline", 0.4),
        ("icr", "seq_len=32,vocab_size=8", 1.0), ("icr", "baseline,test_seq_len=512", 1.0),
    ):  # fmt: skip
        sizes = {"data_seed": len(setting)}
        fakes.add_run(results, [0.0, score, 0.0], mixer="gdn", task=task, setting=setting, **sizes)
    text = reported(capsys, results)
    assert [row[::2] for row in table_of(text)[1:]] == [["icr", "0.800"], ["mem", "0.400"], ["Avg", "0.600"]]
    harder = [["setting", "gdn"], ["256-512", "0.200"], ["1024-2048", "0.100"]]
    assert [row[1:] for row in table_of(text, "challenge")] == harder
    assert "tested at another length" in text and "own sizes" in text
    settings = (results / "report/official/settings.md").read_text()
    assert "seq_len=32,vocab_size=8" in settings and "baseline,test_seq_len=512" in settings
    alone = reported(capsys, results, "--where", "task.setting=seq_len=32,vocab_size=8")
    assert table_of(alone)[1] == ["icr", "1.000"]
    for length in (32, 64):
        fakes.add_run(results, [0.0, 0.5, 0.0], task="sc", setting=f"seq_len={length}", data_seed=length)
    assert "sc: the mean of 2 settings of your own" in reported(capsys, results)


def test_own_sizes_of_which_all_runs_failed_have_no_part_in_means(tmp_path):
    for setting, score in (("seq_len=64", 0.4), ("seq_len=32", "failed")):
        fakes.add_run(tmp_path, [score], lr=1e-3, setting=setting, seq_len=int(setting[-2:]))
    fakes.add_run(tmp_path, [0.6], lr=1e-3, mixer="gdn", setting="seq_len=64", seq_len=64)
    assert list(reports.table(tmp_path).loc["icr", ["attn", "gdn"]]) == ["0.400", "0.600"]


def test_a_named_setting_without_a_score_does_not_hide_own_sizes(tmp_path):
    fakes.add_run(tmp_path, [0.4], lr=1e-3, setting="seq_len=64", seq_len=64)
    fakes.add_run(tmp_path, ["failed"], lr=1e-3, mixer="gdn")
    made = reports.table(tmp_path)
    assert made.loc["icr", "attn"] == "0.400"
    assert "icr baseline: no score, left out of the means." in made.attrs["notes"]


def test_own_sizes_have_no_part_in_means_over_several_data(tmp_path):
    fakes.add_run(tmp_path, [0.0, 0.1, 0.0], setting="seq_len=64", seq_len=64)
    for seed, score in ((None, 0.9), (1, 0.8), (2, 0.7)):
        fakes.add_run(tmp_path, [0.0, score, 0.0], **({} if seed is None else {"data_seed": seed}))
    made = reports.table(tmp_path)
    assert made.loc["icr", "attn"] == "0.800"
    assert {
        "icr seq_len=64, data_seed=null: own sizes, left out of the means.",
        "icr: the mean of 3 settings of your own; table settings has each.",
    } <= set(made.attrs["notes"])


def test_shares_that_learned_are_of_the_cells_of_the_means(tmp_path):
    """Not of own sizes or, in the mean over tasks, of the harder set; `(1/2)` where settings have no score."""
    for setting in ("baseline", "seq_len-256"):
        fakes.add_run(tmp_path, [0.95], lr=1e-3, setting=setting)
    fakes.add_run(tmp_path, [0.95], lr=1e-3, task="mem")
    fakes.add_run(tmp_path, [0.1], lr=1e-3, task="icr_challenge", setting="256-512")
    fakes.add_run(tmp_path, [0.95], lr=1e-3, mixer="gdn")
    for mixer in ("gdn", "novel"):
        fakes.add_run(tmp_path, [0.1], lr=1e-3, mixer=mixer, setting="seq_len=64", seq_len=64)
    reports.report([tmp_path], tmp_path / "out")
    shares = (tmp_path / "out/official/solved.md").read_text().split("Replicas")[0].replace(" ", "")
    assert "|icr|1.00|1.00(1/2)|-|" in shares and "|Avg|1.00|1.00(1/3)|-|" in shares


def test_a_note_stands_under_the_tables_that_it_concerns(results):
    """Here MLPs that were matched on the harder set only."""
    for mixer, width in (("attn", 352), ("gdn", 320)):
        changed = {"model.d_ff": width}
        fakes.add_run(results, [0.1, 0.2, 0.1], mixer=mixer, task="icr_challenge", setting="256-512", changed=changed)
    noted = [str(reports.table(results, name).attrs["notes"]) for name in ("accuracy", "challenge", "settings")]
    assert ["model.d_ff" in notes for notes in noted] == [False, True, True]


def test_a_report_replaces_the_one_before_and_nothing_else(results):
    mine = [results / "report/official/mine.txt", results / "report/report.html"]
    mine[0].parent.mkdir(parents=True)
    for path in mine:
        path.write_text("mine")
    fakes.add_run(results, [0.0, 0.1, 0.0], mixer="gdn", task="icr_challenge", setting="1024-2048")
    reports.report([results], results / "report")
    gone = [results / "report/official/challenge.md", results / "report/clean/accuracy.md"]
    assert all(path.exists() for path in gone)
    reports.report([results], results / "report", selections=("official",), where=["task=icr"])
    assert not any(path.exists() for path in gone) and all(path.read_text() == "mine" for path in mine)
