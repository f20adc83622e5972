"""Our numbers beside published ones: complete or not, by each rule, at their learning rates, and what is refused."""

import re
from dataclasses import replace

import fakes
import pandas as pd
import pytest
import yaml

from mixerlab.api import compose
from mixerlab.config.settings import settings_of
from mixerlab.sweeps.figures.comparison import comparison
from mixerlab.sweeps.figures.sheet import save
from mixerlab.sweeps.report import compare
from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.columns import Column
from mixerlab.sweeps.tables.published import (
    at_rate_of_task,
    averaged_settings,
    distance,
    numbers_of,
    ours,
    read_published,
    scores_by_seed,
)

SETTINGS = ("baseline", "vocab_size-512", "vocab_size-1024", "vocab_size-2048", "vocab_size-4096", "vocab_size-8192")
MEM = {"task": "mem", "setting": "baseline"}
ATTN, GDN = Column("attn"), Column("gdn")


@pytest.fixture(autouse=True)
def undrawn(monkeypatch):
    """Figures are made, and not drawn but by the command: that is nearly all the time of a comparison."""
    monkeypatch.setattr(compare, "save", lambda figure, stem, _: stem.with_suffix(".png").touch())


@pytest.fixture
def results(tmp_path):
    """attn has all of mem, gdn half of it, and one level of the challenge."""
    folder = tmp_path / "results"
    for number, setting in enumerate(SETTINGS):
        fakes.add_run(folder, [0.1, 0.9 - 0.1 * number], lr=[1e-3, 5e-3], task="mem", setting=setting)
        if number < 3:
            fakes.add_run(folder, [0.1, 0.5], lr=[1e-3, 5e-3], mixer="gdn", task="mem", setting=setting)
    fakes.add_run(folder, [0.8], lr=[1e-3], task="icr_challenge", setting="256-512")
    return folder


@pytest.fixture
def published(tmp_path):
    path = tmp_path / "published.yaml"
    tables = {
        "one": {
            "title": "One",
            "means": {"attn": {"mem": 0.6}, "gdn": {"mem": 0.5}, "mesa": {"mem": 0.7}},
            "settings": {"attn": {"icr_challenge 256-512": 1.0}},
        },
        "other": {"title": "Other", "checked": "by eye", "means": {"attn": {"mem": 0.62}, "mesa": {"mem": 0.9}}},
        "third": {"title": "Third", "means": {"attn": {"mem": 0.4}}},
    }
    path.write_text(yaml.safe_dump({"over": {"mem": list(SETTINGS)}, "tables": tables}))
    return path


def test_settings_of_ones_own_are_no_part_of_a_mean(published, tmp_path):
    for number, setting in enumerate((*SETTINGS[:-1], "vocab_size-300")):
        fakes.add_run(tmp_path / "own", [0.5 + 0.1 * number], lr=[1e-3], task="mem", setting=setting)
    entry = ours(fakes.frame_of(tmp_path / "own"), averaged_settings(read_published(published).values()))[
        "mem", "", ATTN
    ]
    assert (entry.done, entry.whole, entry.mean) == (5, False, pytest.approx(0.7))


def test_a_band_does_not_lie_on_the_frame(results, published):
    tables = read_published(published)
    series = ours(fakes.frame_of(results), averaged_settings(tables.values()))
    titles = {key: table.title for key, table in tables.items()}
    (panel, _) = comparison(series.to_frame(), numbers_of(tables), titles, "", None).axes
    ends = [bar.get_x() for bar in panel.patches]
    assert panel.get_xlim()[0] < min(ends) - 0.005


def test_a_condition_may_hold_in_one_of_two_sources(results, published, tmp_path):
    fakes.add_run(tmp_path / "own", [0.9], lr=[1e-3], mixer="novel", **MEM)
    sources, tables = [results, tmp_path / "own"], read_published(published)
    text = compare.compare(sources, tmp_path / "out", tables, where=["mixer=attn,novel"])
    assert "| novel " in text and "| attn " in text and "| gdn " not in text
    with pytest.raises(ValueError, match="results: no run"):
        compare.compare(sources, tmp_path / "out", tables, where=["mixer=novel"])


def test_notes_are_of_the_runs_that_are_shown(results, published, tmp_path):
    for mixer, epochs in (("attn", 60), ("novel", 1)):
        changed = {"trainer.epochs": epochs}
        fakes.add_run(results, [0.9], lr=[1e-3], mixer=mixer, setting="seq_len=64", seq_len=64, changed=changed)
    text = compare.compare([results], tmp_path / "out", read_published(published))
    assert "One" in text and "epochs" not in text
    fakes.add_run(results, [0.9], lr=[1e-3], mixer="novel", **MEM, changed={"trainer.epochs": 1})
    assert "epochs (60: attn, gdn; 1: novel)" in compare.compare([results], tmp_path / "out", read_published(published))


def test_the_distance_of_two_tables():
    one, other = (
        pd.Series({(f"t{n}", "", "attn"): v for n, v in enumerate(values)})
        for values in ([0.1, 0.4, 0.2, 0.9], [0.2, 0.3, 0.4, 0.8])
    )
    count, rmse, spearman = distance(one, other)
    assert (count, rmse) == (4, pytest.approx((0.07 / 4) ** 0.5))
    assert spearman == pytest.approx(0.8)  # 1 - 6 sum d^2 / (n (n^2 - 1)), d = 0, 1, 1, 0
    assert distance(one, other[:0])[0] == 0


def test_each_seed_has_its_own_best_rate(tmp_path):
    rates = [1e-3, 5e-3]
    fakes.add_run(tmp_path, [1.0, 0.1, 0.2, 0.9], lr=rates, seed=[0, 1], **MEM)
    fakes.add_run(tmp_path, [0.3], lr=[1e-3], seed=2, **MEM)  # 5e-3 has not been run
    fakes.add_run(tmp_path, ["diverged", 0.5, "diverged", "diverged"], lr=rates, seed=[3, 4], **MEM)
    frame, place = fakes.frame_of(tmp_path), (ATTN, "mem", "baseline")
    by_seed = {(*place, seed): score for seed, score in ((0, 1.0), (1, 0.9), (3, 0.5), (4, 0.0))}
    assert dict(scores_by_seed(frame)) == dict(scores_by_seed(frame, rates=rates)) == by_seed
    assert scores_by_seed(frame, rates=[*rates, 5e-4]).empty, "a rate is lacking"
    assert dict(scores_by_seed(frame, rates=[1e-3])[place]) == {0: 1.0, 1: 0.2, 2: 0.3, 3: 0.0, 4: 0.0}


def test_of_equal_rates_a_seed_takes_the_one_that_a_cell_takes(tmp_path):
    fakes.add_run(tmp_path, [0.7, 0.8, 0.9], lr=[1e-3, 5e-3, 1e-2], **MEM)
    frame = fakes.frame_of(tmp_path).assign(clean_val_accuracy=0.5, clean_accuracy=[0.7, 0.8, 0.9])
    assert list(scores_by_seed(frame, "clean")) == list(best_per_cell(frame, "clean")["mean"]) == [0.8]


def test_the_last_epoch_at_one_rate_of_a_task(tmp_path):
    """5e-3 is best for gdn, 1e-3 for attn and on the mean; 1e-2 has not been run everywhere, so it is not chosen."""
    fakes.add_run(tmp_path, [0.9, 0.2, "diverged", 0.1], lr=[1e-3, 5e-3], seed=[0, 1], **MEM)
    fakes.add_run(tmp_path, [0.2, 0.4], lr=[1e-3, 5e-3], mixer="gdn", **MEM)
    fakes.add_run(tmp_path, [1.0], lr=[1e-2], mixer="gdn", **MEM)
    frame = fakes.frame_of(tmp_path)
    frame["test_accuracy"] = frame["official_accuracy"]
    frame.loc[(frame["mixer"] == "gdn") & (frame["lr"] == 1e-3), "test_accuracy"] = 0.15
    found = {(ATTN, "mem", "baseline", 0): 0.9, (ATTN, "mem", "baseline", 1): 0.0, (GDN, "mem", "baseline", 0): 0.15}
    assert dict(at_rate_of_task(frame)) == found


def test_the_command(results, published, capsys, monkeypatch):
    monkeypatch.setattr(compare, "save", save)
    out = results / "compare"  # as `report`
    compare.main([str(results), str(results), "--labels", "a*", "b", "--published", str(published)])
    assert {path.name for path in out.iterdir()} == {
        *("published.md", "means.png", "means.pdf", "settings.png", "settings.pdf")
    }
    text = (out / "published.md").read_text()
    told = capsys.readouterr().out
    assert text.strip().replace(r"a\*", "a*") in told and "\\" not in told
    lines = ["|".join(part.strip() for part in line.split("|")) for line in text.splitlines()]
    assert "|mem|attn|0.650|0.650|0.400 to 0.620 (3)|0.600|0.620|0.400|" in lines
    assert "|mem|gdn|0.500 * (3/6)|0.500 * (3/6)||0.500|||" in lines and "* Over" in lines[0] and "±" not in lines[0]
    assert "|icr_challenge 256-512|attn|0.800|0.800|1.000|" in lines
    assert r"|a\*|0.050 (1)|0.030 (1)|0.250 (1)|" in lines
    assert "|other|0.142 (2)||0.220 (1)|" in lines
    assert r"outside their range: a\* 1 of 1, b 1 of 1, one 0 of 1." in text
    left_out = "- Published mixers without a number of ours are left out: mesa."
    assert {"- one: One.", "- other: Other. Checked: by eye.", left_out} <= set(lines)


def test_a_published_table_is_counted_beside_ours_only(results, published, tmp_path):
    tables = read_published(published)
    for where, counted in (("attn", True), ("gdn", False)):  # of which a single table has a number
        text = compare.compare([results], tmp_path / "out", tables, where=[f"mixer={where}"])
        assert ("outside their range" in text) == counted


def test_runs_on_other_data_have_lines_of_their_own(published, tmp_path):
    for data_seed, accuracy in enumerate((0.8, 0.6)):
        fakes.add_run(tmp_path, [accuracy], lr=[1e-3], task="icr_challenge", setting="256-512", data_seed=data_seed)
    text = compare.compare([tmp_path], tmp_path / "out", read_published(published))
    assert re.search(r"attn, data_seed=0 *\| 0.800 \| 1.000", text) and re.search(r"data_seed=1 *\| 0.600", text)


def test_tables_whose_means_are_over_other_settings_are_not_set_side_by_side(results, published, tmp_path):
    """Else ours was the mean over the settings of the last one, beside all of them."""
    tables = read_published(published)
    tables["other"] = replace(tables["other"], over={"mem": SETTINGS[:2]})
    with pytest.raises(ValueError, match="mem: Other has the mean over other settings"):
        compare.compare([results], tmp_path / "out", tables)


def test_what_it_refuses(results, published, tmp_path, monkeypatch):
    monkeypatch.chdir(results.parent)
    fakes.add_run(tmp_path / "other", [0.5, 0.5, 0.5], task="delay")
    for arguments, told in (
        ([str(results), str(tmp_path / "other")], f"{tmp_path / 'other'}: no run on a setting"),
        ([str(results), "--published", "nobody"], "choose parallax, mesanet"),
        ([str(results), "--labels", "a", "b"], "--labels a b"),
        (["--rates", "7"], "results: no run on a setting that a table of parallax,"),
        ([str(results), "--rates", "7"], "cmp baseline, at each of learning rates 7; --rates names others"),
    ):
        with pytest.raises(ValueError, match=re.escape(told)):
            compare.main([*arguments, "--out", str(tmp_path / "out")])
    wrong = yaml.safe_load(published.read_text())
    wrong["tables"]["one"]["means"]["attn"]["mem"] = 60.0
    published.write_text(yaml.safe_dump(wrong))
    with pytest.raises(ValueError, match="one, attn, mem: 60"):
        read_published(published)
    published.write_text("tables: [one]")
    with pytest.raises(ValueError, match=r"\{NAME: \{means"):
        read_published(published)


def test_means_are_over_all_settings_of_our_tasks():
    tables = read_published().values()
    over = next(iter(tables)).over
    assert {task for table in tables for task, setting, _ in table.numbers.index if not setting} == set(over)
    assert all(table.over == over for table in tables)
    for task, settings in over.items():
        assert list(settings) == list(settings_of(compose(f"task={task}").task))
