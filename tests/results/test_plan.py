"""The lists of runs that are left for a GPU: each cell and seed once, those that tell mixers apart first."""

from collections import Counter

import pandas as pd
import pytest
from omegaconf import OmegaConf

import mixerlab
from mixerlab.config.values import checked
from mixerlab.records.identity import run_id
from mixerlab.results import plan
from mixerlab.results.costs import lengths
from mixerlab.results.rows import with_run_ids
from mixerlab.results.screen import design
from mixerlab.sweeps.report.published import read_published
from mixerlab.sweeps.tables.collect import best_per_cell
from mixerlab.sweeps.tables.sources import rows_of


def replicas(run, rates=plan.DEFAULT_RATES):
    """The rates and seeds of a run."""
    given = dict(text.split("=") for text in run.overrides.split())
    trained = given["optimizer.lr"].strip("[]").split(",") if "optimizer.lr" in given else rates
    return [(rate, int(seed)) for rate in trained for seed in given["seed"].strip("[]").split(",")]


def counted(runs):
    return Counter((run.mixer, run.task, run.setting, *replica) for run in runs for replica in replicas(run))


def listed(runs):
    """The replicas of a list, as `replicas_in` has those that were made; none may be there twice."""
    found = counted(runs)
    assert set(found.values()) <= {1}
    return {(*cell, seed, float(rate)) for *cell, rate, seed in found}


def test_the_table_gets_each_cell_with_three_seeds_at_the_rates_of_the_first():
    """What is listed and what was made: together all, and nothing twice."""
    runs, made = list(plan.table()), plan.replicas_in("table/rows.csv")
    left = listed(runs)
    assert left and not left & made
    both = {replica for replica in left | made if replica[1] in plan.TASKS}
    tried = {(*cell, lr) for *cell, seed, lr in both if seed == 0}
    assert len({cell[:3] for cell in tried}) == 330 and len(tried) > 330 * 3
    for seed in (1, 2):
        assert {(*cell, lr) for *cell, of, lr in both if of == seed} == tried
    stages = [run.stage for run in runs]
    assert list(dict.fromkeys(stages)) == sorted(set(stages), key=stages.index)  # one after the other
    for run in runs:
        length, rates = lengths(run.task)[run.setting], {rate for rate, _ in replicas(run)}
        assert length < plan.LONG or len(replicas(run)) == len(rates)  # one seed
        assert len(rates) == 1 or len(rates) * length <= plan.MOST_TOKENS


def test_a_list_starts_with_every_cell_once(monkeypatch):
    monkeypatch.setattr(plan, "replicas_in", lambda rows, recipe=None: set())
    first = [run for run in plan.table() if run.stage == "every cell"]
    assert len(listed(first)) == 330 * 3  # the default's rates
    assert {seed for run in first for _, seed in replicas(run)} == {0}
    of_first = [lengths(run.task)[run.setting] for run in first]
    assert of_first == sorted(of_first, reverse=True)


def test_seeds_that_lack_other_rates_get_runs_of_their_own():
    cell = ("attn", "fcr", "baseline")
    made = {(*cell, 1, 1e-2), (*cell, 3, 1e-2), (*cell, 3, 2e-2)}
    runs = list(plan.runs_of("stage", *cell, [1, 2, 3, 4], ["1e-2", "2e-2"], made=made))
    assert [replicas(run) for run in runs] == [
        [("2e-2", 1)],
        [("1e-2", 2), ("1e-2", 4), ("2e-2", 2), ("2e-2", 4)],
    ]


def test_attention_and_parallax_run_every_reading_of_the_challenge(monkeypatch):
    assert not listed(plan.challenge()) & plan.replicas_in("table/rows.csv")
    monkeypatch.setattr(plan, "replicas_in", lambda rows, recipe=None: set())
    runs = list(plan.challenge())
    cells = (5 * len(plan.CHALLENGE) + 3 + 2) * 3  # and the other reading of ncr, of icr
    of_sc = 5 * 3  # its other reading has one seed
    third = 2 * 9  # the third seed of attention and Parallax
    assert len(listed(runs)) == (cells * 2 + of_sc + third) * 3  # seeds, rates
    for stage in {run.stage for run in runs}:
        seeds = [replicas(run)[0][1] for run in runs if run.stage == stage]
        assert seeds == sorted(seeds)  # the first seed first


def test_adamw_gets_three_seeds_of_every_level_and_a_lower_rate_for_long_recall(monkeypatch):
    monkeypatch.setattr(plan, "replicas_in", lambda rows, recipe=None: set())
    of_stage = {stage: [run for run in plan.adamw() if run.stage == stage] for stage in {r.stage for r in plan.adamw()}}
    assert all("optimizer=adamw" in run.overrides for runs in of_stage.values() for run in runs)
    assert {stage: len(listed(runs)) for stage, runs in of_stage.items()} == {
        "adamw baselines": 2 * 6 * 3 * 3,  # mixers, tasks, seeds, rates
        "adamw challenge": 2 * 9 * 3 * 3,
        "adamw recall at a lower rate": 2 * 4 * 2,
    }
    assert {run.setting.split("-")[1] for run in of_stage["adamw recall at a lower rate"]} == {"1024", "2048"}
    for stage in ("adamw challenge", "adamw recall at a lower rate"):
        seeds = [replicas(run)[0][1] for run in of_stage[stage]]
        assert seeds == sorted(seeds)  # the first seed first


def test_what_adamw_has_is_not_listed():
    made = plan.replicas_in("adamw/rows.csv")
    assert len(made) >= 238 and not listed(plan.adamw()) & made


def test_mamba_gets_the_spectral_scale_on_every_setting_up_to_length_256(monkeypatch):
    monkeypatch.setattr(plan, "finished_in", lambda rows: set())
    runs = [run for run in plan.steps() if run.recipe == "spectral scale" and run.mixer == "mamba"]
    expected = {(task, setting) for task in plan.TASKS for setting, length in lengths(task).items() if length <= 256}
    assert len(runs) == len(expected) == len({(run.task, run.setting) for run in runs})
    assert {(run.task, run.setting) for run in runs} == expected


def test_the_challenge_is_read_as_the_papers_numbers_are_published():
    published = read_published(plan.RESULTS / "published" / "parallax_paper.json")["settings"]
    named = {name for name in published if name != "columns"}
    assert named == {f"{task} {setting}" for task in plan.CHALLENGE for setting in lengths(task)}
    sweep = OmegaConf.load(plan.RESULTS.parent / "conf" / "experiment" / "challenge.yaml").hydra.sweeper.params
    assert tuple(sweep.task.split(",")) == plan.CHALLENGE


OF_RECIPES = pd.read_csv(plan.RESULTS / "challenge" / "recipes.csv")


def test_the_other_recipes_change_what_they_say():
    initial = {"model.linear_std"}
    changes = {
        "2x64": {"mamba": {"mixer.zero_dt_bias"}},
        "plain": {"attn": {"mixer.qk_norm"}, "parallax": {"mixer.qkr_norm"}},
        "PyTorch's init": dict.fromkeys(plan.MIXERS, initial),
        "mad-lab's attention": {"attn": initial | {"mixer.qk_norm", "mixer.num_heads", "mixer.bias"}},
        "4 states": {"mamba": {"mixer.d_state"}},
        "spectral scale": {"mamba": {"optimizer.update_scale"}},
    }
    recalling = {
        ("2x64", "mamba"),
        ("4 states", "mamba"),
        ("spectral scale", "mamba"),
        *(("PyTorch's init", mixer) for mixer in ("attn", "parallax", "mamba")),
    }
    left = pd.DataFrame(map(vars, plan.recipes()), columns=OF_RECIPES.columns)
    for run in pd.concat([OF_RECIPES, left]).drop_duplicates(["stage", "mixer", "task"]).itertuples():
        changed, default = (mixerlab.compose(*text) for text in (run.overrides.split(), [f"mixer={run.mixer}"]))
        others = {
            f"{group}.{name}"
            for group in ("mixer", "model", "optimizer")
            for name in set(changed[group]) - {"lr"}
            if changed[group][name] != default[group][name]
        }
        assert others == changes[run.recipe][run.mixer]
        assert run.task == "sc_challenge" or (run.recipe, run.mixer) in recalling


@pytest.mark.sampled(2)
@pytest.mark.parametrize("stage", sorted(OF_RECIPES["stage"].unique()))
def test_the_recipes_of_the_list_were_run_or_are_left(stage):
    def ids(overrides):
        return set(with_run_ids(pd.DataFrame({"overrides": list(overrides)}))["run_id"])

    rows = pd.read_csv(plan.RESULTS / "challenge" / "recipe_rows.csv")
    assert set(rows["stage"]) <= set(OF_RECIPES["stage"])
    made = set(rows[rows["stage"] == stage]["run_id"])
    listed = ids(OF_RECIPES[OF_RECIPES["stage"] == stage]["overrides"])
    left = ids(run.overrides for run in plan.recipes() if run.stage == stage)
    assert made <= listed <= made | left
    assert not made & left


def test_smaller_steps_of_the_matrices_leave_those_of_the_embedding_and_norms(monkeypatch):
    monkeypatch.setattr(plan, "finished_in", lambda rows: set())
    runs = [run for run in plan.steps() if run.recipe == "matrices at 0.3"]
    changed, default = (mixerlab.compose(*text).optimizer for text in (runs[0].overrides.split(), []))
    for old, new in zip(default.lr, changed.lr, strict=True):
        assert new == pytest.approx(design.MATRIX_RATE * old)
        assert new * changed.table_lr_scale == pytest.approx(old * default.table_lr_scale)
        assert new * changed.gain_lr_scale == pytest.approx(old * default.gain_lr_scale)


def test_recipes():
    assert design.RECIPES["plain"]["mamba"] == ["model.linear_std=0.02"]
    assert design.RECIPES["4x32"]["mamba"] == design.RECIPES["2x64"]["mamba"]  # it has no heads
    assert "mixer.num_heads=1" in design.RECIPES["1x128"]["gdn"]


def test_the_default_is_2x64_with_the_dt_bias_of_mamba_kept():
    of_plain = design.RECIPES["2x64"] | {"mamba": design.RECIPES["plain"]["mamba"]}
    for mixer, given in of_plain.items():
        default, explicit = (checked(mixerlab.compose(f"mixer={mixer}", *more))[1] for more in ([], given))
        assert run_id(default) == run_id(explicit)


def test_variants_are_compared_on_the_same_cells():
    cells = {(task, setting) for task, settings in design.VARIANT_CELLS.items() for setting in settings}
    listed = [(run["recipe"], run["mixer"], run["task"], run["setting"]) for run in design.variants()]
    assert len(listed) == len(set(listed)) == 15 * len(cells)
    assert {key[2:] for key in listed if key[:2] == ("1x128", "attn")} == cells
    assert all(setting in lengths(task) for task, setting in cells)


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ("rows.csv", ["design"]),
        ("finalist_rows.csv", ["finalists", "finalists_2", "finalists_3", "finalists_4", "finalists_5", "finalists_6"]),
        ("step_rows.csv", ["steps"]),
        ("variant_rows.csv", ["variants"]),
    ],
)
def test_the_lists_still_describe_the_runs_that_were_made(rows, names):
    """Whatever the defaults have become since: the overrides say all that matters. Each 40th run is looked at."""
    folder, cell = plan.RESULTS / "screen", ["recipe", "mixer", "task", "setting"]
    listed = pd.concat([pd.read_csv(folder / f"{name}.csv")[[*cell, "overrides"]] for name in names])
    made = pd.read_csv(folder / rows)[[*cell, "run_id"]].drop_duplicates("run_id")
    some = listed.merge(made, on=cell).drop_duplicates("run_id").iloc[::40]
    assert len(some) > 2
    assert [run_id(checked(mixerlab.compose(*text.split()))[1]) for text in some["overrides"]] == list(some["run_id"])


FIRST_TABLE = plan.RESULTS / "rounding" / "rows.csv"


def rates_of(run):
    """The learning rates that a run's overrides name, as written."""
    return run.overrides.rpartition("optimizer.lr=")[2].strip("[]").split(",")


def test_unsolved_cells_get_the_same_rates_for_all_mixers(monkeypatch, tmp_path):
    """High ones, what another mixer was given, and what lies beyond an edge: each cell what it has not tried."""
    monkeypatch.setattr(plan, "_require_default", lambda rows, run: None)  # these rows have another recipe
    first = rows_of(FIRST_TABLE)
    of_setting = (first["task"] == "cmp") & (first["setting"] == "baseline")
    is_attn = of_setting & (first["mixer"] == "attn") & (first["lr"] == 5e-3)
    higher = [first[is_attn].assign(lr=lr, official_accuracy=0.9 if lr == 4e-2 else 0.8) for lr in (1e-2, 4e-2)]
    rows = pd.concat([first, *(rows.assign(run_id=f"wider{number}") for number, rows in enumerate(higher))])
    rows.to_csv(tmp_path / "rows.csv", index=False)
    cells = best_per_cell(first[of_setting])
    unsolved = set(cells[cells["accuracy"] < plan.NEAR_PERFECT]["mixer"])
    assert len(unsolved) > 2 and "attn" in unsolved
    runs = [run for run in plan.wider(tmp_path / "rows.csv") if (run.task, run.setting) == ("cmp", "baseline")]
    assert {run.mixer: rates_of(run) for run in runs} == {
        mixer: ["0.02", "0.08"] if mixer == "attn" else ["0.01", "0.02", "0.04", "0.08"] for mixer in unsolved
    }


def test_a_low_edge_gets_the_rate_below_and_a_solved_cell_none(monkeypatch, tmp_path):
    monkeypatch.setattr(plan, "_require_default", lambda rows, run: None)
    first = rows_of(FIRST_TABLE)
    rows = first[
        (first["task"] == "cmp") & (first["setting"] == "baseline") & first["mixer"].isin(["attn", "gdn"])
    ].copy()
    rows.loc[rows["mixer"] == "attn", "official_accuracy"] = 1.0
    rows.loc[rows["mixer"] == "gdn", "official_accuracy"] = rows["lr"].map({5e-4: 0.6, 1e-3: 0.5, 5e-3: 0.4})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    (run,) = plan.wider(tmp_path / "rows.csv")
    assert (run.mixer, rates_of(run)) == ("gdn", ["0.00025", "0.01", "0.02"])


def test_a_wider_grid_is_for_runs_of_the_default():
    with pytest.raises(ValueError, match=r"rows.csv: run \w+ of attn has another recipe than conf/ now"):
        list(plan.wider(FIRST_TABLE))


def test_each_seed_of_a_long_cell_gets_its_run():
    archive = plan.RESULTS / "challenge" / "records.tar.xz"
    cells = best_per_cell(rows_of(archive))
    cell = cells[(cells["mixer"] == "attn") & (cells["task"] == "sc_challenge") & (cells["setting"] == "256-1024")]
    assert cell["n"].item() == 2
    runs = [
        run for run in plan.wider(archive) if (run.mixer, run.task, run.setting) == ("attn", "sc_challenge", "256-1024")
    ]
    assert len({run.overrides.split()[3] for run in runs}) == 2


def test_a_cell_gets_the_rates_that_most_others_have(tmp_path):
    """A § of the tables."""
    rows = rows_of(plan.RESULTS / "table" / "rows.csv")
    cell = (rows["mixer"] == "attn") & (rows["task"] == "mem") & (rows["setting"] == "vocab_size-2048")
    assert len(rows[cell]) > 3
    rows[(rows["task"] == "mem") & ~(cell & rows["lr"].isin([1e-3, 5e-4]))].to_csv(tmp_path / "rows.csv", index=False)
    (run,) = (
        run for run in plan.wider(tmp_path / "rows.csv") if (run.mixer, run.setting) == ("attn", "vocab_size-2048")
    )
    assert rates_of(run)[:2] == ["0.0005", "0.001"]


def test_what_is_done_is_not_listed():
    done = plan.finished_in("screen/rows.csv")
    left = list(plan.screen())
    assert not {(run.recipe, run.mixer, run.task, run.setting) for run in left} & done
    assert len(left) + len(done) == 960


def test_replicas_of_a_run_are_read_from_its_overrides():
    assert plan.replicas_of("mixer=attn seed=[0,1] optimizer.lr=[1e-2,1e-3]") == 4
    assert plan.replicas_of("mixer=attn seed=0") == 3


@pytest.mark.parametrize(("given", "message"), [(["table", "rows.csv"], "no rows"), (["wider"], "rows of a table")])
def test_rows_are_for_a_wider_grid_only(monkeypatch, capsys, tmp_path, given, message):
    monkeypatch.setattr("sys.argv", ["plan.py", given[0], str(tmp_path / "list.csv"), *given[1:]])
    with pytest.raises(SystemExit):
        plan.main()
    assert f"{given[0]} takes {message}" in capsys.readouterr().err.replace("the rows", "rows")
    assert not list(tmp_path.iterdir())


def test_rows_of_another_optimizer_are_refused(tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text(FIRST_TABLE.read_text().replace(",muon,", ",adamw,"))
    with pytest.raises(ValueError, match=r"runs by adamw: give rows of Muon only"):
        list(plan.wider(rows))
