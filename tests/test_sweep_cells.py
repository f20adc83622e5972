"""Which runs a sweep has, and what `dry_run=true` calls them: experiments, and keys that only some cells have."""

from collections import Counter

import pytest
from command_line import ROOT, records, run_py
from omegaconf import OmegaConf


def dry_run(*overrides, results_dir):
    """(mixer, task, setting and what else tells it apart) of the cells that a sweep would run, and the other lines."""
    outcome = run_py("-m", *overrides, "dry_run=true", f"results_dir={results_dir}")
    assert outcome.code == 0 and not records(results_dir)
    lines = [line.removesuffix("to run").split(maxsplit=3) for line in outcome.out.splitlines() if line.endswith("run")]
    assert len({line[0] for line in lines}) == len(lines)  # every cell a run of its own
    others = [line for line in outcome.out.splitlines() if not line.endswith("run")]
    return [(mixer, task, rest.strip()) for _, mixer, task, rest in lines], others


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "by_task"),
    [
        ("mad_table", {"icr": 11, "ncr": 14, "fcr": 11, "mem": 6, "cmp": 11, "sc": 13}),
        ("frontier", {"state_tracking": 3, "mqar": 3, "icr": 3, "ncr": 3}),
        ("challenge", {"icr_challenge": 3, "ncr_vocab_challenge": 3, "sc_challenge": 3}),
    ],
)
def test_experiments_have_their_settings_of_five_mixers(tmp_path, experiment, by_task):
    """Of one mixer: the others compose in the same way, in five times the time."""
    params = OmegaConf.load(ROOT / "conf" / "experiment" / f"{experiment}.yaml").hydra.sweeper.params
    assert set(params.mixer.split(",")) == {"attn", "parallax", "gdn", "mamba", "mesa"}
    cells, (total,) = dry_run(f"experiment={experiment}", "mixer=attn", results_dir=tmp_path)
    assert total == f"{sum(by_task.values())} runs, 0 of them finished" and len(set(cells)) == len(cells)
    assert Counter(task for _, task, _ in cells) == by_task


def test_every_setting_of_a_task_and_hybrids_among_the_mixers(tmp_path):
    grid = ("mixer=attn,hybrid", "mixer.layers=[attn,gdn]", "task=mem", "task.setting=*")
    cells, lines = dry_run(*grid, results_dir=tmp_path)
    assert Counter(mixer for mixer, _, _ in cells) == {"attn": 6, "attn+gdn": 6}
    assert "mixer.layers applies to attn+gdn" in lines[0] and lines[0].endswith("run: attn")


@pytest.mark.slow
def test_a_dry_run_tells_its_runs_apart_by_the_swept_keys(tmp_path):
    """Of the keys of a task, only those that its setting does not say; of a single run none."""
    grid = ("mixer=attn,mamba", "task=icr", "mixer.num_heads=2,4", "seed=0,1", "model.d_model=32")
    cells, lines = dry_run(*grid, results_dir=tmp_path)
    of_attn = [f"baseline, mixer.num_heads={heads}, seed={seed}" for heads in (2, 4) for seed in (0, 1)]
    assert [name for mixer, _, name in cells if mixer == "attn"] == of_attn
    assert [name for mixer, _, name in cells if mixer == "mamba"] == ["baseline, seed=0", "baseline, seed=1"]
    assert lines[-1] == "6 runs, 0 of them finished"
    cells, _ = dry_run("mixer=attn", "task=icr", "task.seq_len=64,96", results_dir=tmp_path)
    assert [name for _, _, name in cells] == ["seq_len=64", "seq_len=96"]
