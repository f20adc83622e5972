"""The arithmetic of the tables, checked by hand, what they mark, and how they are written."""

import csv
import io
from dataclasses import replace

import fakes
import pytest

from mixerlab.records.schema import Score
from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.columns import Column
from mixerlab.sweeps.tables.notes import notes_of
from mixerlab.sweeps.tables.tables import Entry, best_of, gaps, mean_of, seeds_entry, setting_table, task_table, text_of
from mixerlab.sweeps.tables.writers import solved_markdown, to_csv, to_latex, to_markdown


def texts(table):
    return {name: [text_of(entry, table.most_seeds) for entry in row] for name, row in table.frame.iterrows()}


def entry(by_seed, **given):
    mean = sum(by_seed.values()) / len(by_seed)
    return Entry(mean, by_seed, 1, 1, "ok", (len(by_seed), len(by_seed)), **given)


def bold(**entries):
    return {column.mixer for column in best_of({Column(mixer): entry for mixer, entry in entries.items()})}


@pytest.fixture
def cells(tmp_path):
    """Two tasks x three mixers: attn complete, gdn with a diverged setting, new_mixer without memorization."""
    for (mixer, task, setting), scores in {
        ("attn", "icr", "baseline"): [0.1, 0.9, 0.1],
        ("attn", "icr", "seq_len-256"): [0.1, 0.1, 0.5],  # on the edge
        ("attn", "mem", "baseline"): [0.1, 0.4, 0.1],
        ("gdn", "icr", "baseline"): [0.1, 0.99, 0.1],
        ("gdn", "icr", "seq_len-256"): ["diverged"] * 3,
        ("gdn", "mem", "baseline"): [0.1, 0.3996, 0.1],
        ("new_mixer", "icr", "baseline"): [0.1, 0.8, 0.1],
        ("new_mixer", "icr", "seq_len-256"): [0.1, 0.4, "diverged"],
    }.items():
        fakes.add_run(tmp_path, scores, mixer=mixer, task=task, setting=setting)
    return fakes.cells_of(tmp_path)


def test_tables_by_hand(cells):
    assert texts(task_table(cells)) == {
        "icr": ["0.700 †1", "0.990 * (1/2)", "0.600"],
        "mem": ["0.400", "0.400", "missing"],
        # Of the tasks, not of the settings: (0.7 + 0.4) / 2, (0.99 + 0.3996) / 2, 0.6 alone.
        "Avg": ["0.550 †1", "0.695 * (2/3)", "0.600 * (2/3)"],
    }
    assert texts(setting_table(cells)) == {
        ("icr", "baseline"): ["0.900", "0.990", "0.800"],
        ("icr", "seq_len-256"): ["0.500 †", "diverged", "0.400"],
        ("mem", "baseline"): ["0.400", "0.400", "missing"],
    }
    means, settings = ({note.split()[0] for note in make(cells).notes} for make in (task_table, setting_table))
    assert {"†", "†k:", "*", "(k/n):"} <= means and settings & {"†", "†k:", "*", "(k/n):"} == {"†"}


def test_own_tasks_are_no_part_of_the_mean_of_mads(tmp_path):
    for task, score in (("icr", 0.2), ("mem", 0.4), ("own", 0.9)):
        fakes.add_run(tmp_path, [0.1, score, 0.1], task=task)
    table = task_table(fakes.cells_of(tmp_path))
    assert texts(table)["Avg"] == ["0.300"] and "Avg is the mean of MAD's tasks, without own." in table.notes


def test_an_interval_over_seeds(tmp_path):
    # Task means by seed: seed 0 (0.8 + 0.6) / 2 = 0.7, seed 1 (0.6 + 0.4) / 2 = 0.5; standard error 0.1, t 12.706.
    fakes.add_run(tmp_path, [0.1, 0.8, 0.1, 0.1, 0.6, 0.1], seed=[0, 1])
    fakes.add_run(tmp_path, [0.1, 0.6, 0.1, 0.1, 0.4, 0.1], seed=[0, 1], setting="seq_len-256")
    (mean,) = task_table(fakes.cells_of(tmp_path)).entries
    assert (mean.mean, mean.half_interval) == (pytest.approx(0.6), pytest.approx(1.2706))
    assert text_of(mean, 2) == "0.600 ± 1.271" and text_of(mean, 3) == "0.600 ± 1.271 (2)"


def test_the_share_of_seeds_that_learned(tmp_path):
    """Of the seeds at the best rate, whatever other rates reach; averaged over the settings."""
    fakes.add_run(tmp_path, [0.9, 0.95, 0.1, 0.1, 0.6, 0.1], seed=[0, 1])
    fakes.add_run(tmp_path, [0.1, 0.95, 0.1, 0.1, 0.9, 0.1], seed=[0, 1], setting="seq_len-256")
    cells = fakes.cells_of(tmp_path)
    assert [entry.learned for entry in setting_table(cells).entries] == [0.5, 1.0]
    assert task_table(cells).entries[0].learned == 0.75
    lines = [line.replace(" ", "") for line in solved_markdown(cells, cells).splitlines()]
    assert "|icr|0.75|" in lines and "|icr|baseline|2/6,-|" in lines


def test_a_note_says_how_many_seeds_diverged(tmp_path):
    fakes.add_run(tmp_path, [0.1, 0.8, 0.1, 0.1, "diverged", 0.1, 0.1, 0.8, 0.1], seed=[0, 1, 2])
    fakes.add_run(tmp_path, [0.1, 0.8, 0.1, 0.1, "failed", 0.1], seed=[0, 1], mixer="gdn")
    assert gaps(fakes.cells_of(tmp_path)) == [
        "attn: 2 of 3 seeds at the best learning rate (1 diverged) on icr (baseline).",
        "gdn: 1 of 2 seeds at the best learning rate on icr (baseline).",
    ]


def test_a_mean_over_settings_of_different_seeds_has_the_interval_of_a_sum():
    """The mean takes in every seed, so an interval over those that all share would be of another number."""
    two, one = entry({0: 0.6, 1: 0.6}), entry({0: 0.3})
    # Standard errors 0.4 / 3 of two degrees of freedom, and 0: of the mean 0.2 / 3, times 4.303; half of that with one.
    mean = mean_of([entry({0: 0.5, 1: 0.5, 2: 0.9}), two])
    assert (mean.mean, mean.by_seed) == (pytest.approx((1.9 / 3 + 0.6) / 2), {})
    missing = seeds_entry({})
    for entries, text in (
        ([mean], "0.617 ± 0.287 (2 to 3 seeds)"),
        ([mean, one], "0.458 ± 0.143 (1 to 3 seeds)"),
        ([mean, missing], "0.617 ± 0.287 (2 to 3 seeds) * (2/3)"),
        ([two, entry({2: 0.4, 3: 0.4})], "0.500 ± 0.000 (2 seeds)"),
        ([one, entry({1: 0.4})], "0.350"),
        ([missing, *(replace(missing, status=status) for status in ("failed", "diverged"))], "diverged (0/3)"),
    ):
        assert text_of(mean_of(entries), 3) == text


def test_bold_needs_evidence():
    close = {0: 0.80, 1: 0.79, 2: 0.81}
    far = {seed: score - 0.1 for seed, score in close.items()}
    wide = {0: 0.70, 1: 0.85, 2: 0.60}
    assert bold(attn=entry(close), gdn=entry(far), mesa=entry(wide)) == {"attn", "mesa"}
    assert bold(attn=entry({0: 0.9}), gdn=entry({0: 0.8})) == set()  # one seed says nothing
    assert bold(attn=entry({0: 0.9}), gdn=entry(close), mesa=entry(far)) == set()  # also if it is ahead
    # Whichever seeds they have: half of Welch's interval is 2.776 * sqrt(2 / 3) * 0.01 = 0.0227.
    for below, best in ((0.022, {"attn", "gdn"}), (0.023, {"attn"})):
        for first in (0, 3):
            moved = {first + seed: score - below for seed, score in close.items()}
            assert bold(attn=entry(close), gdn=entry(moved)) == best
    # Equal as printed: both.
    assert bold(attn=entry({0: 0.4, 1: 0.4}), gdn=entry({0: 0.3996, 1: 0.3996})) == {"attn", "gdn"}
    bits = Score("bits", higher_is_better=False)
    worse = {seed: 1 - score for seed, score in far.items()}
    assert bold(attn=entry(close, score=bits), gdn=entry(worse, score=bits)) == {"gdn"}


@pytest.mark.parametrize("incomplete", [{"whole": False}, {"comparable": False}])
def test_what_is_incomplete_is_never_bold_and_what_may_be_better_lets_nothing_below_be(incomplete):
    def row(**changed):
        means = {"attn": 0.99, "gdn": 0.60, "mamba": 0.59}
        return {
            mixer: entry({0: mean, 1: mean}, **(incomplete if mixer in changed else {}))
            for mixer, mean in means.items()
        }

    assert bold(**row()) == {"attn"} and row(attn=1)["attn"].incomplete
    assert bold(**row(attn=1)) == (set() if "comparable" in incomplete else {"gdn"})
    assert bold(**row(gdn=1)) == {"attn"} and bold(**row(attn=1, gdn=1, mamba=1)) == set()


@pytest.mark.parametrize("other", [None, "failed", 0.3])
def test_a_seed_that_only_other_rates_have_is_lost(tmp_path, other):
    """Whether its run at the best rate failed or is no longer there; one that no rate has is not."""
    fakes.add_run(tmp_path, [0.5, 0.9], lr=[1e-3, 1e-2], seed=0)
    scores = [0.4] if other is None else [0.4, other]
    fakes.add_run(tmp_path, scores, lr=[1e-3, 1e-2][: len(scores)], seed=1)
    (found,) = setting_table(fakes.cells_of(tmp_path)).entries
    assert (found.mean, found.incomplete) == ((pytest.approx(0.6), False) if other == 0.3 else (0.9, True))


@pytest.mark.parametrize("part", ["mixer", "task", "training"])
def test_a_mean_over_several_versions_of_the_code_says_so_in_every_format(tmp_path, part):
    """Not one over seeds of one code, though another cell's differs."""
    for mixer, (score, seeds_by_code) in {"attn": (0.9, {"a": 0, "b": [3, 4]}), "gdn": (0.4, {"c": [0, 3, 4]})}.items():
        for code, seed in seeds_by_code.items():
            versions = {"mixer": "x", "task": "x", "training": "x"} | {part: code}
            own = [score + 0.01 * each for each in ([seed] if seed == 0 else seed)]
            fakes.add_run(tmp_path, own, mixer=mixer, lr=1e-3, seed=seed, provenance={"code_version": versions})
    frame, whose = fakes.frame_of(tmp_path), {"mixer": "mixer attn", "task": "task icr", "training": "training"}
    assert notes_of(frame) == [f"The code changed between these runs: {whose[part]}."]
    table = setting_table(best_per_cell(frame))
    assert texts(table)["icr", "baseline"] == ["0.923 ± 0.052 *", "0.423 ± 0.052"]
    (attn, gdn) = csv.DictReader(io.StringIO(to_csv(table)))
    assert (attn["incomplete"], attn["bold"], gdn["incomplete"], gdn["bold"]) == ("1", "0", "0", "0")
    assert to_latex(table).count(r"\textsuperscript{*}") == 1 and r"\textbf" not in to_latex(table)
    note = "attn: different code trained the seeds 0 / 3, 4 on icr (baseline)."
    assert note in table.notes and f"% {note}" in to_latex(table) and "0.923 ± 0.052 * |" in to_markdown(table)


@pytest.fixture
def seeds(tmp_path):
    """Three seeds, two pairs of betas: of gdn one setting is missing, and of mamba a seed."""
    for mixer, setting, scores in (
        ("attn", "baseline", [0.70, 0.71, 0.69]), ("attn", "seq_len-256", [0.70, 0.71, 0.69]),
        ("gdn", "baseline", [0.99, 0.99, 0.98]), ("mamba", "baseline", [0.5, 0.5, "diverged"]),
        ("mamba", "seq_len-256", [0.5, 0.5, 0.6]), ("a_b & c", "baseline", [0.3, 0.31, 0.29]),
        ("a_b & c", "seq_len-256", [0.3, 0.31, 0.29]),
    ):  # fmt: skip
        for beta in (0.9, 0.99) if mixer == "attn" else (0.9,):
            changed = {"optimizer.betas": [0.8, beta]}
            lower = [score if isinstance(score, str) else score - (beta > 0.9) / 10 for score in scores]
            fakes.add_run(tmp_path, lower, lr=1e-3, seed=[0, 1, 2], mixer=mixer, setting=setting, changed=changed)
    return task_table(fakes.cells_of(tmp_path))


def test_markdown(seeds):
    head, ruler, icr, *rest = to_markdown(seeds).splitlines()
    assert [cell.strip() for cell in icr.split("|")[1:-1]] == [
        "icr", "**0.700 ± 0.025**", "0.600 ± 0.025", "0.987 ± 0.014 * (1/2)",
        "0.517 ± 0.072 (2 to 3 seeds) *", "0.300 ± 0.025",
    ]  # fmt: skip
    assert len({len(head), len(ruler), len(icr)}) == 1 and rest[0] == "" and all(line[0] == "-" for line in rest[1:])


def test_latex_has_swept_keys_below_their_mixer_and_its_notes_as_comments(seeds):
    latex = to_latex(seeds)
    heads = [rf"\shortstack[l]{{attn\\betas=[0.8, {beta}]}}" for beta in (0.9, 0.99)]
    assert " & ".join(["task", *heads, ""]) in latex and r"\shortstack[l]{a\_b \& c\\betas=[0.8, 0.9]}" in latex
    assert r"icr & \textbf{0.700}\textsubscript{$\pm$0.025} & 0.600" in latex
    assert r"0.517\textsubscript{$\pm$0.072 (2 to 3 seeds)}\textsuperscript{*}" in latex and "% After ±" in latex


def test_csv_has_a_row_for_each_entry(seeds):
    attn, _, gdn, mamba, _ = csv.DictReader(io.StringIO(to_csv(seeds)))
    assert (attn["task"], attn["column"], attn["n"], attn["bold"]) == ("icr", "attn, betas=[0.8, 0.9]", "3", "1")
    assert float(attn["mean"]) == pytest.approx(0.7)
    assert float(attn["half_interval"]) == pytest.approx(4.303 * 0.01 / 3**0.5)
    assert (gdn["settings"], gdn["of"], gdn["incomplete"], gdn["bold"]) == ("1", "2", "1", "0")
    assert (mamba["n"], mamba["incomplete"]) == ("2", "1")
