"""Which runs a sweep has, and what `dry_run=true` calls them: experiments, and keys that only some cells have."""

import pandas as pd
import pytest
from command_line import records, run_py

from mixerlab.config.postponed import postponed


def dry_run(*overrides, results_dir):
    """(mixer, task, setting) of the cells that a sweep would run, and its last line."""
    outcome = run_py("-m", *overrides, "dry_run=true", f"results_dir={results_dir}")
    assert outcome.code == 0 and not records(results_dir)
    *lines, total = outcome.out.splitlines()
    assert all(line.endswith("to run") for line in lines)
    assert len({line.split()[0] for line in lines}) == len(lines)  # every cell a run of its own
    return [tuple(line.split()[1:4]) for line in lines], total


@pytest.mark.slow
def test_the_table_is_66_settings_of_five_mixers(tmp_path):
    cells, total = dry_run("experiment=mad_table", results_dir=tmp_path)
    assert total == "330 runs, 0 of them finished" and len(set(cells)) == 330
    assert {mixer for mixer, _, _ in cells} == {"attn", "parallax", "gdn", "mamba", "mesa"}
    by_task = pd.Series([task for mixer, task, _ in cells if mixer == "attn"]).value_counts().to_dict()
    assert by_task == {"icr": 11, "ncr": 14, "fcr": 11, "mem": 6, "cmp": 11, "sc": 13}


@pytest.mark.slow
def test_the_frontier_is_four_tasks_at_three_lengths(tmp_path):
    cells, total = dry_run("experiment=frontier", results_dir=tmp_path)
    assert total == "60 runs, 0 of them finished" and len(set(cells)) == 60
    assert {mixer for mixer, _, _ in cells} == {"attn", "parallax", "gdn", "mamba", "mesa"}
    of_attn = {(task, setting) for mixer, task, setting in cells if mixer == "attn"}
    rows = "num_train_examples=100000"  # what the levels of the first two have anyway
    bases = {"state_tracking": "S3-128", "mqar": "8-128", "icr": rows, "ncr": rows}
    assert of_attn == {
        (task, base + longer)
        for task, base in bases.items()
        for longer in ("", ",test_seq_len=256", ",test_seq_len=512")
    }


@pytest.mark.slow
def test_the_challenge_is_nine_cells_of_five_mixers(tmp_path):
    cells, total = dry_run("experiment=challenge", results_dir=tmp_path)
    assert total == "45 runs, 0 of them finished"
    assert ("mesa", "sc_challenge", "512-2048") in cells


def test_mixer_and_task_narrow_an_experiment(tmp_path):
    cells, _ = dry_run("experiment=mad_table", "mixer=attn", "task=mem,sc", results_dir=tmp_path)
    assert len(cells) == 6 + 13 and {cell[:2] for cell in cells} == {("attn", "mem"), ("attn", "sc")}
    cells, _ = dry_run("mixer=attn", "task=icr", "task.setting=baseline,seq_len-512", results_dir=tmp_path)
    assert cells == [("attn", "icr", "baseline"), ("attn", "icr", "seq_len-512")]


def test_a_dry_run_tells_its_runs_apart_by_the_swept_keys(tmp_path):
    """Of the keys of a task, only those that its setting does not say; of a single run none."""
    where = ("dry_run=true", f"results_dir={tmp_path}")
    grid = ("mixer=attn,mamba", "task=icr", "mixer.num_heads=2,4", "seed=0,1", "model.d_model=32")
    _, *cells, total = run_py("-m", *grid, *where).out.splitlines()
    assert [line[14:].rstrip("untor ").rstrip() for line in cells] == [
        "attn icr baseline, num_heads=2, seed=0",
        "attn icr baseline, num_heads=2, seed=1",
        "attn icr baseline, num_heads=4, seed=0",
        "attn icr baseline, num_heads=4, seed=1",
        "mamba icr baseline, seed=0",
        "mamba icr baseline, seed=1",
    ]
    assert total == "6 runs, 0 of them finished"
    one, total = run_py("-m", "mixer=attn", "task=icr", "seed=0", *where).out.splitlines()
    assert one.split()[1:] == ["attn", "icr", "baseline", "to", "run"] and total == "1 run, 0 of them finished"
    first, second, _ = run_py("-m", "mixer=attn", "task=icr", "task.seq_len=64,96", *where).out.splitlines()
    assert [line.split()[1:4] for line in (first, second)] == [
        ["attn", "icr", f"seq_len={length}"] for length in (64, 96)
    ]
    cells = run_py("-m", "mixer=attn", "task=icr", "optimizer=muon,adamw", *where).out.splitlines()[:2]
    assert [line.split()[4] for line in cells] == ["optimizer=muon", "optimizer=adamw"]


def test_a_key_that_only_some_cells_have_runs_where_it_applies(tmp_path):
    grid = ("mixer=attn", "task=icr,sc", "task.num_tokens_to_copy=8,12")
    outcome = run_py("-m", *grid, "dry_run=true", f"results_dir={tmp_path}")
    line, *cells, _ = outcome.out.splitlines()
    assert line == ("task.num_tokens_to_copy=8,12 applies to sc; without it, as they have no such key, run: icr")
    assert [cell.split()[2:4] for cell in cells] == [
        ["icr", "baseline"],
        ["sc", "num_tokens_to_copy=8"],
        ["sc", "num_tokens_to_copy=12"],
    ]
    for override, applies in {"task.num_tokens_to_copy=8": "sc", "mixer.num_heads=4": "attn"}.items():
        outcome = run_py("-m", "mixer=attn,mamba", "task=icr,sc", override, "dry_run=true", f"results_dir={tmp_path}")
        assert outcome.code == 0 and f"{override} applies to {applies}; without it" in outcome.out
    typing_error = run_py("-m", "mixer=attn", "task=icr,sc", "task.num_token=8", f"results_dir={tmp_path}")
    assert typing_error.code == 1 and "unknown key task.num_token;" in typing_error.err


def test_a_key_that_not_all_cells_have_is_left_to_them():
    """Beside what is no override: options and their values."""
    given = [
        "--config-dir",
        "/a/conf",
        "-m",
        "mixer=hybrid,attn",
        "mixer.layers=[attn,gdn]",
        "task=icr",
        "task.seq_len=8",
        "mixer.backend=null",  # of which Hydra has no choice
    ]
    changed = [argument for argument in postponed(given) if argument not in given]
    assert changed == ["mixer.layers=choice([attn,gdn])"] and len(postponed(given)) == len(given)
