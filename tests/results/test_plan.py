"""The lists of runs that are left for a GPU: each cell and seed once, those that tell mixers apart first."""

from collections import Counter

import pytest

from mixerlab.results import plan


def replicas(run, rates=plan.DEFAULT_RATES):
    """The rates and seeds of a run."""
    given = dict(text.split("=") for text in run.overrides.split())
    trained = given["optimizer.lr"].strip("[]").split(",") if "optimizer.lr" in given else rates
    return [(rate, int(seed)) for rate in trained for seed in given["seed"].strip("[]").split(",")]


def counted(runs):
    return Counter((run.mixer, run.task, run.setting, *replica) for run in runs for replica in replicas(run))


def test_the_table_has_each_cell_at_four_rates_with_three_seeds():
    runs = list(plan.table("default"))
    found = counted(runs)
    assert len(found) == 330 * 4 * 3 and set(found.values()) == {1}
    stages = [run.stage for run in runs]
    assert list(dict.fromkeys(stages)) == sorted(set(stages), key=stages.index)  # one after the other
    first = {(run.task, run.setting) for run in runs if run.stage == "cells that tell"}
    assert ("fcr", "num_train_examples-3200") in first and ("icr", "baseline") not in first
    for run in runs:
        length, rates = plan.lengths(run.task)[run.setting], {rate for rate, _ in replicas(run)}
        assert length < plan.LONG or len(replicas(run)) == len(rates)  # one seed
        assert len(rates) == 1 or len(rates) * length <= plan.MOST_TOKENS


def test_the_challenge_has_every_reading():
    found = counted(plan.challenge("2x64"))
    cells = 5 * (len(plan.CHALLENGE) + len(plan.OTHER_READINGS)) * 3
    assert len(found) == cells * 3 * 2 and set(found.values()) == {1}  # rates, seeds


def test_recipes():
    assert plan.RECIPES["plain"]["attn"] == ["model.linear_std=0.02"]
    assert plan.RECIPES["plain"]["mamba"] == ["model.linear_std=0.02"]
    assert plan.RECIPES["4x32"]["mamba"] == plan.RECIPES["2x64"]["mamba"]  # it has no heads


def test_variants_are_compared_on_the_same_cells():
    cells = {(task, setting) for task, settings in plan.VARIANT_CELLS.items() for setting in settings}
    listed = [(run.recipe, run.mixer, run.task, run.setting) for run in plan.variants()]
    assert len(listed) == len(set(listed)) == 15 * len(cells)
    assert {key[2:] for key in listed if key[:2] == ("1x128", "attn")} == cells
    assert ("1x128", "mesa") not in {key[:2] for key in listed}
    assert all(setting in plan.lengths(task) for task, setting in cells)
    assert "mixer.num_heads=1" in plan.RECIPES["1x128"]["gdn"]


def test_a_marked_cell_gets_the_rate_beyond_its_edge():
    runs = {
        (run.mixer, run.task, run.setting): run for run in plan.wider("default", plan.RESULTS / "draft" / "rows.csv")
    }
    assert len(runs) == 113
    assert runs["attn", "cmp", "baseline"].overrides.split()[-2:] == ["seed=0", "optimizer.lr=0.01"]
    assert {run.overrides.rpartition("=")[2] for run in runs.values()} == {"0.01", "0.00025"}


def test_what_is_done_is_not_listed():
    done = plan.finished_in("screen/rows.csv")
    left = list(plan.screen())
    assert not {(run.recipe, run.mixer, run.task, run.setting) for run in left} & done
    assert len(left) + len(done) == 960


def test_costs_come_from_runs():
    """A cell that was run costs what it took; twice the replicas or a longer sequence cost more."""
    costs = plan.Costs()
    assert 3 * costs.of_replica("default", "attn", "sc", "seq_len-1024") == pytest.approx(94 / 2, abs=1)
    longer = costs.of_replica("default", "attn", "sc_challenge", "512-2048")
    assert longer == pytest.approx(costs.of_replica("default", "attn", "sc", "seq_len-1024") * 2**1.2)
    assert plan.replicas_of("mixer=attn seed=[0,1] optimizer.lr=[1e-2,1e-3]") == 4
    assert plan.replicas_of("mixer=attn seed=0") == 3


@pytest.mark.parametrize("given", [["screen", "--recipe", "2x64"], ["table", "--rows", "rows.csv"]])
def test_an_option_of_another_list_is_refused(monkeypatch, capsys, tmp_path, given):
    monkeypatch.setattr("sys.argv", ["plan.py", given[0], str(tmp_path / "list.csv"), *given[1:]])
    with pytest.raises(SystemExit):
        plan.main()
    assert given[1] in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_rows_of_another_optimizer_are_refused(tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text((plan.RESULTS / "draft" / "rows.csv").read_text().replace(",muon,", ",adamw,"))
    with pytest.raises(ValueError, match=r"runs by adamw: give rows of Muon only"):
        list(plan.wider("default", rows))
