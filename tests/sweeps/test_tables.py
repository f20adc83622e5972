"""The arithmetic of the tables, checked by hand, and what they say about gaps."""

import math
import re

import fakes
import pytest

from mixerlab.records.names import MIXERS
from mixerlab.sweeps.tables.collect import best_per_cell, collect
from mixerlab.sweeps.tables.keys import spread_out
from mixerlab.sweeps.tables.table_files import intervals_csv, to_csv, to_latex, to_markdown
from mixerlab.sweeps.tables.tables import Score, best_of, mean_of, setting_table, task_table, text_of


@pytest.fixture
def cells(tmp_path):
    """Two tasks x three mixers: attn complete, gdn with a diverged setting, new_mixer without memorization."""
    runs = {
        ("attn", "icr", "baseline"): [0.1, 0.9, 0.1],
        ("attn", "icr", "seq_len-256"): [0.1, 0.1, 0.5],  # on the edge
        ("attn", "mem", "baseline"): [0.1, 0.4, 0.1],
        ("gdn", "icr", "baseline"): [0.1, 0.99, 0.1],
        ("gdn", "icr", "seq_len-256"): ["diverged"] * 3,
        ("gdn", "mem", "baseline"): [0.1, 0.3996, 0.1],
        ("new_mixer", "icr", "baseline"): [0.1, 0.8, 0.1],
        ("new_mixer", "icr", "seq_len-256"): [0.1, 0.4, "diverged"],
    }
    for (mixer, task, setting), scores in runs.items():
        fakes.add_run(tmp_path, scores, mixer=mixer, task=task, setting=setting)
    return best_per_cell(collect(tmp_path))


def test_task_table_by_hand(cells):
    table = task_table(cells)
    assert table.mixers == ("attn", "gdn", "new_mixer")
    assert list(table.rows) == [("icr",), ("mem",), ("Avg",)]
    texts = {name[0]: [text_of(row[mixer]) for mixer in table.mixers] for name, row in table.rows.items()}
    assert texts == {
        "icr": ["0.700 †1", "0.990* (1/2)", "0.600"],
        "mem": ["0.400", "0.400", "missing"],
        # Of the tasks, not of the settings: (0.7 + 0.4) / 2, (0.99 + 0.3996) / 2, 0.6 alone.
        "Avg": ["0.550 †1", "0.695* (2/3)", "0.600* (2/3)"],
    }


def test_tasks_of_ones_own_are_no_part_of_the_average(tmp_path):
    for task, score in (("icr", 0.9), ("mem", 0.5), ("delay", 0.1), ("echo", 0.2)):
        fakes.add_run(tmp_path, [0.0, score, 0.0], task=task)
    cells = best_per_cell(collect(tmp_path))
    table = task_table(cells)
    assert text_of(table.rows["Avg",]["attn"]) == "0.700"
    assert "Avg is the mean of MAD's tasks, without delay, echo." in table.notes
    alone = task_table(cells[cells["task"].isin(["delay", "echo"])])
    assert text_of(alone.rows["Avg",]["attn"]) == "0.150" and not alone.notes


def test_setting_table_by_hand(cells):
    table = setting_table(cells)
    texts = {name: [text_of(row[mixer]) for mixer in table.mixers] for name, row in table.rows.items()}
    assert texts == {
        ("icr", "baseline"): ["0.900", "0.990", "0.800"],
        ("icr", "seq_len-256"): ["0.500 †", "diverged", "0.400"],
        ("mem", "baseline"): ["0.400", "0.400", "missing"],
    }


def test_notes_name_every_gap(cells):
    notes = task_table(cells).notes
    assert "gdn: diverged on icr (seq_len-256)." in notes
    assert "new_mixer: missing on mem (baseline)." in notes
    assert "Replicas without a score beside others of their cell: new_mixer 1 diverged, 0 otherwise." in notes
    assert len([note for note in notes if note.startswith("†")]) == 1
    assert len([note for note in notes if note.startswith("*")]) == 1
    assert not any("±" in note for note in notes)
    assert not any(note.startswith("*") for note in setting_table(cells).notes)


def test_daggers_and_the_cells_that_might_have_one_count_by_the_choosing_accuracy(tmp_path):
    """Of `clean` that is validation; by test it would be "1 of the 0 cells"."""
    fakes.add_run(tmp_path, [(0.1, 0.1), (0.1, 0.1), (0.99, 0.9)])  # (test, validation)
    frame = collect(tmp_path)
    (note,) = setting_table(best_per_cell(frame, "clean")).notes
    assert "This applies to 1 of 1 cell below 0.98" in note


def test_a_clean_table_has_no_notes(tmp_path):
    fakes.add_run(tmp_path, [0.1, 0.9, 0.1])
    assert task_table(best_per_cell(collect(tmp_path))).notes == []


def test_one_task_has_no_average(tmp_path):
    fakes.add_run(tmp_path, [0.1, 0.9, 0.1])
    assert list(task_table(best_per_cell(collect(tmp_path))).rows) == [("icr",)]


def test_competing_configurations_are_noted(tmp_path):
    fakes.add_run(tmp_path, [0.1, 0.9, 0.1])
    fakes.add_run(tmp_path, [0.1, 0.8, 0.1], num_heads=2)
    (note,) = task_table(best_per_cell(collect(tmp_path))).notes
    assert note == "attn: the best of up to 2 configurations on icr (baseline)."


def test_missing_cells_are_a_line_for_each_mixer(tmp_path):
    for setting in ("baseline", "seq_len-256", "seq_len-512"):
        fakes.add_run(tmp_path, [0.1, 0.9, 0.1], setting=setting)
        fakes.add_run(
            tmp_path,
            [0.1, 0.9, 0.1],
            task="mem",
            setting=setting.replace("seq_len-256", "vocab_size-1024").replace("seq_len", "vocab_size"),
        )
    for mixer in ("gdn", "mesa"):
        fakes.add_run(tmp_path, [0.1, 0.9, 0.1], mixer=mixer, task="mem")
    fakes.add_run(tmp_path, ["diverged"] * 3, mixer="mamba")
    *_, both, mamba = task_table(best_per_cell(collect(tmp_path))).notes
    assert both == "gdn; mesa: missing on icr (all 3 settings), mem (vocab_size-512, vocab_size-1024)."
    assert (
        mamba == "mamba: diverged on icr (baseline); missing on icr (seq_len-256, seq_len-512), mem (all 3 settings)."
    )


def test_markdown(cells):
    assert to_markdown(task_table(cells)).splitlines()[:6] == [
        "| task |     attn |          gdn |    new_mixer |",
        "| ---- | -------: | -----------: | -----------: |",
        "| icr  | 0.700 †1 | 0.990* (1/2) |        0.600 |",
        "| mem  |    0.400 |        0.400 |      missing |",
        "| Avg  | 0.550 †1 | 0.695* (2/3) | 0.600* (2/3) |",
        "",
    ]
    assert r"- \* Mean over the k of n settings" in to_markdown(task_table(cells))


def test_latex(cells):
    lines = to_latex(task_table(cells)).splitlines()
    assert lines[:16] == [
        r"% \usepackage{booktabs}",
        r"\begin{tabular}{@{}c@{}}",
        r"\begin{tabular}{@{}llll@{}}",
        r"\toprule",
        r"task & attn & gdn & new\_mixer \\",
        r"\midrule",
        r"icr & 0.700\textsuperscript{$\dagger$1} & 0.990\textsuperscript{* (1/2)} & 0.600 \\",
        r"mem & 0.400 & 0.400 & missing \\",
        r"\midrule",
        r"Avg & 0.550\textsuperscript{$\dagger$1} & 0.695\textsuperscript{* (2/3)} & 0.600\textsuperscript{* (2/3)} \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\\ \noalign{\medskip}",
        r"\parbox{\linewidth}{\footnotesize\raggedright",
        r"One seed: nothing is bold, since nothing says how far seeds differ.\par",
        lines[15],
    ]
    assert lines[15].startswith(r"$\dagger$ Below 0.98") and lines[16].startswith("* Mean over the k of n settings")
    assert lines[17:19] == ["}", r"\end{tabular}"]
    assert lines[19:] and all(line.startswith("% ") for line in lines[19:])  # gaps, which mark nothing
    by_setting = to_latex(setting_table(cells))
    assert r"icr & seq\_len-256 & 0.500\textsuperscript{$\dagger$} & diverged & 0.400 \\" in by_setting


def test_a_latex_table_without_marks_has_nothing_below_it(tmp_path):
    fakes.add_run(tmp_path, [0.1, 0.9, 0.1])
    lines = to_latex(task_table(best_per_cell(collect(tmp_path)))).splitlines()
    assert lines[1] == r"\begin{tabular}{@{}ll@{}}" and lines[-1] == r"\end{tabular}"


def test_bare_latex_has_its_legend_as_comments(cells):
    whole, bare = (to_latex(task_table(cells), bare=bare).splitlines() for bare in (False, True))
    assert bare[1:11] == whole[2:12] and bare[10] == r"\end{tabular}"  # without the box that holds table and legend
    assert bare[11] == "% One seed: nothing is bold, since nothing says how far seeds differ."
    assert bare[12].startswith("% † Below 0.98") and all(line.startswith("% ") for line in bare[11:])


def test_the_header_of_a_latex_table_has_a_line_for_each_swept_key(tmp_path):
    for width in (64, 128):
        fakes.add_run(tmp_path, [0.9], lr=1e-3, changed={"model.d_model": width, "mixer.rotary_fraction": 0.5})
        fakes.add_run(tmp_path, [0.9], lr=1e-3, mixer="gdn", changed={"model.d_model": width})
    fakes.add_run(tmp_path, [0.9], lr=1e-3, changed={"model.d_model": 64, "mixer.rotary_fraction": 1.0})
    cells = best_per_cell(spread_out(collect(tmp_path)).frame)
    latex = to_latex(task_table(cells))
    assert latex[latex.index(r"\toprule") : latex.index("icr")].splitlines() == [
        r"\toprule",
        r"mixer & \multicolumn{3}{l}{attn} & \multicolumn{2}{l@{}}{gdn} \\",
        r"\cmidrule(lr){2-4} \cmidrule(lr){5-6}",
        r"\multicolumn{6}{@{}l@{}}{rotary\_fraction} \\",  # too long to stand before its values
        r" & 0.5 & 0.5 & 1 &  &  \\",
        r"d\_model & 64 & 128 & 64 & 64 & 128 \\",
        r"task &  &  &  &  &  \\",
        r"\midrule",
    ]
    by_setting = to_latex(setting_table(cells), bare=True).splitlines()
    assert by_setting[3].startswith(r" & mixer & \multicolumn{3}{l}{attn} & ")
    assert by_setting[4] == r"\cmidrule(lr){3-5} \cmidrule(lr){6-7}"
    assert by_setting[8] == r"task & setting &  &  &  &  &  \\"


def test_a_sweep_of_long_keys_fits_the_width_of_a_page(tmp_path):
    """pdfTeX gives 377 points; with each name in one line it was 1278."""
    for mixer in ("attn", "gdn"):
        for width in (64, 128, 256):
            changed = {"model.d_model": width, "model.autoencoder_redraw_all": width > 64}
            for task in ("icr", "ncr", "mem"):
                scores = [0.5, 0.51, 0.52]
                fakes.add_run(tmp_path, scores, lr=1e-3, seed=[0, 1, 2], mixer=mixer, task=task, changed=changed)
    latex = to_latex(task_table(best_per_cell(spread_out(collect(tmp_path)).frame)))
    assert latex.count("0.510") == 24 and printed_width(latex) < 397


def printed_width(latex):
    """Points that the entries of a `to_latex` take in 10 pt Times, from the widths of digits and of gaps.

    pdfTeX gives 286 for the first table of `test_latex_fits_the_width_of_a_page`.
    """
    body = latex[latex.index(r"\toprule") : latex.index(r"\bottomrule")]
    lines = [line for line in body.splitlines() if " & " in line and "multicolumn" not in line]
    rows = [line.removesuffix(r" \\").split(" & ") for line in lines]
    widths = [[_width(entry) for entry in row] for row in rows]
    return sum(map(max, zip(*widths, strict=True))) + 12 * (len(rows[0]) - 1)


def _width(entry):
    entry = re.sub(r"\$\\(pm|dagger)\$", "x", entry)
    small = re.findall(r"\\text(?:sub|super)script\{([^}]*)\}", entry)
    normal = re.sub(r"\\text(?:sub|super)script\{[^}]*\}", "", entry).replace(r"\textbf{", "").replace("}", "")
    points = [(normal, 10), *((text.replace("--", "-"), 7) for text in small)]
    return sum((0.5 * len(text) - 0.25 * sum(map(text.count, " .()"))) * size for text, size in points)


@pytest.mark.parametrize(("seeds", "more"), [([0, 1, 2], [0]), ([0, 1, 2], [0, 1, 2])])
def test_latex_fits_the_width_of_a_page(tmp_path, seeds, more):
    """Five mixers on six tasks with daggers: settings of three seeds beside settings of one, and of three each."""
    for mixer in MIXERS:
        for task in ("icr", "ncr", "fcr", "mem", "cmp", "sc"):
            for setting, given in (("baseline", seeds), ("seq_len-256", more)):
                scores = [score + 0.01 * seed for seed in given for score in (0.5, 0.9)]
                fakes.add_run(tmp_path, scores, lr=[1e-3, 5e-3], seed=given, mixer=mixer, task=task, setting=setting)
    latex = to_latex(task_table(best_per_cell(collect(tmp_path))))
    assert latex.count(r"$\dagger$") > 35
    assert (r"0.905\textsubscript{1--3}\textsuperscript{$\dagger$2}" in latex) == (more == [0])
    assert ("Subscript n--m (seeds): the settings have different seeds." in latex) == (more == [0])
    assert printed_width(latex) < 397  # 5.5 inches


@pytest.fixture
def seeds(tmp_path):
    """Three seeds: on `icr` gdn lacks a setting, on `mem` gdn prints as attn does, and mesa is far below both."""
    for mixer, task, setting, accuracy in (
        ("attn", "icr", "baseline", 0.7),
        ("attn", "icr", "seq_len-256", 0.7),
        ("gdn", "icr", "baseline", 0.99),
        ("mesa", "icr", "baseline", 0.7),
        ("mesa", "icr", "seq_len-256", 0.72),
        ("attn", "mem", "baseline", 0.4),
        ("gdn", "mem", "baseline", 0.3996),
        ("mesa", "mem", "baseline", 0.3),
    ):
        # Seeds vary by the same in each mixer, so that the differences of two hardly vary: all are told apart.
        scores = [accuracy + change for change in (-0.01, 0.0, 0.01)]
        fakes.add_run(tmp_path, scores, lr=1e-3, seed=[0, 1, 2], mixer=mixer, task=task, setting=setting)
    return task_table(best_per_cell(collect(tmp_path)))


def test_bold_in_markdown_and_latex(seeds):
    assert to_markdown(seeds).splitlines()[2:4] == [
        # 0.990 is over fewer settings: not comparable, so not bold.
        "| icr  |     0.700 ± 0.010 (3) | 0.990 ± 0.010 (3)* (1/2) | **0.710 ± 0.010 (3)** |",
        # 0.4 and 0.3996 print the same: both bold.
        "| mem  | **0.400 ± 0.010 (3)** |    **0.400 ± 0.010 (3)** |     0.300 ± 0.010 (3) |",
    ]
    spread = r"\textsubscript{$\pm$0.010}"
    both = rf"mem & \textbf{{0.400}}{spread} & \textbf{{0.400}}{spread} & 0.300{spread} \\"
    assert both in to_latex(seeds)


def test_what_sees_the_future_is_never_bold():
    means = {"attn": 0.6, "gdn": 0.5, "bidir ‡": 1.0}
    assert best_of({mixer: Score(mean, {0: mean, 1: mean}, 1, 1, 0, "ok") for mixer, mean in means.items()}) == {"attn"}


@pytest.fixture
def survivors(tmp_path):
    """Three seeds at one rate: of gdn one diverged, of mamba two have no score, all below a complete attn and mesa."""
    for mixer, scores in {
        "attn": [0.80, 0.81, 0.79],
        "gdn": [0.95, 0.95, "diverged"],
        "mamba": [0.95, "failed", "diverged"],
        "mesa": [0.70, 0.71, 0.69],
    }.items():
        fakes.add_run(tmp_path, scores, lr=1e-3, seed=[0, 1, 2], mixer=mixer)
    return tmp_path


def test_an_entry_says_that_seeds_are_lost_and_is_never_bold(survivors):
    table = setting_table(best_per_cell(collect(survivors)))
    assert best_of(table.rows["icr", "baseline"]) == {"attn"}
    entries = ["**0.800 ± 0.010 (3)**", "0.950 ± 0.000 (2) ¶2/3", "0.950 ¶1/3", "0.700 ± 0.010 (3)"]
    assert [entry.strip() for entry in to_markdown(table).splitlines()[2].split("|")[3:-1]] == entries
    assert to_csv(table).splitlines()[1].endswith(",".join(["", *entries]).replace("*", ""))
    lost = r"& 0.950\textsubscript{$\pm$0.000 (2)}\textsuperscript{¶2/3} & 0.950\textsuperscript{¶1/3} &"
    assert lost in to_latex(table)
    (note,) = [note for note in table.notes if note.startswith("¶")]
    assert note.startswith("¶k/n Mean over k of the n seeds")


def test_a_mean_over_settings_says_in_how_many_seeds_are_lost(survivors):
    for mixer in ("attn", "gdn", "mamba"):
        fakes.add_run(survivors, [0.6, 0.61, 0.59], lr=1e-3, seed=[0, 1, 2], mixer=mixer, setting="seq_len-256")
    row = task_table(best_per_cell(collect(survivors))).rows["icr",]
    assert [text_of(row[mixer]) for mixer in ("gdn", "mamba")] == ["0.775 (2 to 3 seeds) ¶1", "0.775 (1 to 3 seeds) ¶1"]


@pytest.mark.parametrize("other", [None, "failed", 0.3])
def test_a_seed_that_only_other_rates_have_is_lost(tmp_path, other):
    """Whether its run at the best rate failed or is no longer there; one that no rate has is not."""
    fakes.add_run(tmp_path, [0.5, 0.9], lr=[1e-3, 1e-2], seed=0)
    if other is None:
        fakes.add_run(tmp_path, [0.4], lr=1e-3, seed=1)
    else:
        fakes.add_run(tmp_path, [0.4, other], lr=[1e-3, 1e-2], seed=1)
    text = text_of(setting_table(best_per_cell(collect(tmp_path))).rows["icr", "baseline"]["attn"])
    assert text.startswith("0.600 ± 0.424 (2)" if other == 0.3 else "0.900 ¶1/2")


def test_a_clean_table_says_nothing_of_lost_seeds(tmp_path):
    """A rate that lost seeds and is not the best costs the entry nothing."""
    fakes.add_run(tmp_path, [0.9, 0.1, 0.9, "diverged"], lr=[1e-3, 1e-2], seed=[0, 1])
    assert "¶" not in to_markdown(setting_table(best_per_cell(collect(tmp_path))))


def test_csv(cells):
    lines = to_csv(task_table(cells)).splitlines()
    assert lines[0] == "task,attn,gdn,new_mixer,attn_text,gdn_text,new_mixer_text"
    assert lines[2] == "mem,0.4,0.3996,,0.400,0.400,missing"


def test_spread_over_seeds(tmp_path):
    # Task means by seed: seed 0 (0.8 + 0.6) / 2 = 0.7, seed 1 (0.6 + 0.4) / 2 = 0.5.
    fakes.add_run(tmp_path, [0.1, 0.8, 0.1, 0.1, 0.6, 0.1], seed=[0, 1])
    fakes.add_run(tmp_path, [0.1, 0.6, 0.1, 0.1, 0.4, 0.1], seed=[0, 1], setting="seq_len-256")
    table = task_table(best_per_cell(collect(tmp_path)))
    score = table.rows["icr",]["attn"]
    assert score.mean == pytest.approx(0.6)
    assert score.spread == pytest.approx(0.1 * math.sqrt(2))
    assert text_of(score) == "0.600 ± 0.141 (2)"
    assert r"& 0.600\textsubscript{$\pm$0.141} \\" in to_latex(table)
    assert r"Subscript $\pm$ std: the sample standard deviation over 2 seeds, or over n" in to_latex(table)
    assert any(note.startswith("mean ± std (n)") for note in table.notes)


def test_a_mean_over_settings_of_different_seeds_has_no_spread():
    """The mean takes in every seed, so a spread over those that all share would be of another number."""
    three = Score(1.9 / 3, {0: 0.5, 1: 0.5, 2: 0.9}, 1, 1, 0, "ok")
    two = Score(0.6, {0: 0.6, 1: 0.6}, 1, 1, 0, "ok")
    mean = mean_of([three, two])
    assert mean.mean == pytest.approx((1.9 / 3 + 0.6) / 2)
    assert (mean.by_seed, mean.spread, text_of(mean)) == ({}, None, "0.617 (2 to 3 seeds)")
    one = Score(0.3, {0: 0.3}, 1, 1, 0, "ok")
    assert text_of(mean_of([mean, one])) == "0.458 (1 to 3 seeds)"
    assert text_of(mean_of([mean, Score(None, {}, 0, 1, 0, "missing")])) == "0.617 (2 to 3 seeds)* (2/3)"
    assert text_of(mean_of([two, Score(0.4, {2: 0.4, 3: 0.4}, 1, 1, 0, "ok")])) == "0.500 (2 seeds)"
    assert text_of(mean_of([one, Score(0.4, {1: 0.4}, 1, 1, 0, "ok")])) == "0.350"


def test_a_mean_over_settings_of_different_seeds_is_never_bold(tmp_path):
    for mixer, accuracy in (("attn", 0.6), ("gdn", 0.61)):
        fakes.add_run(tmp_path, [accuracy - 0.1, accuracy, accuracy + 0.1], lr=1e-3, seed=[0, 1, 2], mixer=mixer)
        fakes.add_run(tmp_path, [accuracy], lr=1e-3, mixer=mixer, setting="seq_len-256")
    table = task_table(best_per_cell(collect(tmp_path)))
    assert best_of(table.rows["icr",]) == set()
    assert intervals_csv(table).splitlines()[1] == "icr,attn,0.6,2,2,1 to 3,,"
    note, _ = table.notes
    assert note.startswith("(n to m seeds): the settings have different seeds.")


def test_cells_of_one_learning_rate_are_counted(tmp_path):
    """Those below 0.98: at more, another rate gives hardly more."""
    fakes.add_run(tmp_path, [0.5], lr=[1e-3])
    fakes.add_run(tmp_path, [0.99], lr=[1e-3], mixer="gdn")
    fakes.add_run(tmp_path, [0.5, 0.6], lr=[1e-3, 1e-2], mixer="mesa")
    fakes.add_run(tmp_path, [0.4, "diverged"], lr=[1e-3, 1e-2], task="mem")
    told = (
        "1 of 3 cells below 0.98 were run at one learning rate only: another may give more, and such cells cannot get a"
        " dagger."
    )
    table = task_table(best_per_cell(collect(tmp_path)))
    assert told in table.notes and told in table.remarks
    fakes.add_run(tmp_path, [0.5], lr=[1e-2])
    assert not any("one learning rate only" in note for note in task_table(best_per_cell(collect(tmp_path))).notes)


def test_a_row_without_any_score():
    nothing = [Score(None, {}, 0, 1, 0, status) for status in ("failed", "diverged", "missing")]
    assert text_of(mean_of(nothing)) == "diverged (0/3)"
    assert text_of(nothing[0]) == "failed"
