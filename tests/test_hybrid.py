"""`mixer=hybrid`: what its config becomes, what is refused, and that its layers train as they do in a plain model."""

import copy
import itertools

import pytest
import torch
from command_line import TINY, records, run_py
from every_mixer import MIXERS
from every_mixer import config_of as yaml_of
from omegaconf import OmegaConf

import mixerlab
from mixerlab.checks import command as check
from mixerlab.checks.buildable import check_buildable
from mixerlab.config.building import build_model, component
from mixerlab.config.hybrid import mixers_of
from mixerlab.config.values import checked, code_versions
from mixerlab.kernels.fused import cross_entropy
from mixerlab.records.code_version import code_version
from mixerlab.records.identity import run_id
from mixerlab.records.schema import labels_of_replicas
from mixerlab.train import run_state
from mixerlab.training.execution import Decision
from mixerlab.training.population import Execution, Population

HYBRID = ("mixer=hybrid", "task=icr", *TINY)
MINE = "from mixerlab.mixers.attn import Attention\nclass Mine(Attention):\n    pass\n"


def config_of(*overrides, config_dir=None):
    return checked(mixerlab.compose(*overrides, config_dir=config_dir))[1]


@pytest.fixture
def project(tmp_path):
    """The `conf` of a project with a mixer and a hybrid of its own."""
    folder = tmp_path / "conf" / "mixer"
    folder.mkdir(parents=True)
    (tmp_path / "mine_of_hybrids.py").write_text(MINE)
    mine = "defaults: [attn, _self_]\nname: mine\n_target_: mine_of_hybrids.Mine\nrope_base: ${model.d_model}\n"
    (folder / "mine.yaml").write_text(mine)
    options = "options: {0: {num_heads: 4}, 1: {d_conv: 2}}"
    (folder / "striped.yaml").write_text(f"defaults: [hybrid, _self_]\nname: striped\nlayers: [mine, gdn]\n{options}\n")
    return tmp_path / "conf"


@pytest.fixture(scope="module")
def expanded():
    return config_of(*HYBRID, "mixer.layers=[attn,gdn]")


def test_each_layer_has_the_config_that_its_mixer_has(expanded):
    mixer = expanded["mixer"]
    assert mixer["options"] == {str(i): OmegaConf.to_container(yaml_of(name)) for i, name in enumerate(mixer["layers"])}
    assert (mixer["name"], mixer["layers"]) == ("attn+gdn", ["attn", "gdn"])


def test_a_key_of_one_layer():
    layers = mixerlab.compose(*HYBRID, "mixer.layers=[gdn,gdn]", "mixer.options.1.num_heads=4").mixer.options
    assert (layers["0"].num_heads, layers["1"].num_heads) == (2, 4)


def test_an_experiment_sets_what_it_sets_for_each_mixer():
    layers = mixerlab.compose(*HYBRID, "mixer.layers=[attn,gdn]", "experiment=madlab").mixer.options
    assert (layers["0"].num_heads, layers["0"].bias, layers["1"].num_heads) == (16, True, 2)


def test_mixers_and_hybrids_of_a_project(project):
    mixer = config_of("mixer=striped", "task=icr", *TINY, "mixer.options.1.num_heads=4", config_dir=project)["mixer"]
    mine, gdn = mixer["options"].values()
    assert (mixer["name"], mine["name"], mine["rope_base"], mine["num_heads"]) == ("striped", "mine", 16, 4)
    assert (gdn["num_heads"], gdn["d_conv"]) == (4, 2)


@pytest.mark.parametrize("name", ["my conf", "a(b), c", "k=v", "résultats", "d'où"])
def test_a_project_in_a_folder_of_any_name(project, name):
    folder = project.rename(project.with_name(name))
    for mixer in ("mine", "striped"):
        assert mixerlab.compose(f"mixer={mixer}", config_dir=folder).mixer.name == mixer


def test_a_name_of_the_users_own_and_hydras_own_form():
    mixer = mixerlab.compose(*HYBRID, "mixer.layers=[attn,gdn]", "mixer.name=ours", "+mixer@mixer.options.1=gdn").mixer
    assert mixer.name == "ours" and mixer.options["1"] == yaml_of("gdn")


def test_the_identity_holds_every_layer(expanded):
    """A key of a layer that is at its implied value is no part of it, as in a plain mixer."""
    config = copy.deepcopy(expanded)
    identities = {run_id(config)}
    config["mixer"]["options"]["1"]["num_heads"] = 4
    identities.add(run_id(config))
    assert labels_of_replicas(config)[0]["hparams"]["mixer.options.1.num_heads"] == 4
    config["mixer"]["options"]["0"]["bias"] = True
    identities.add(run_id(config))
    config["mixer"]["options"] = dict(zip("10", config["mixer"]["options"].values(), strict=True))
    identities.add(run_id(config))
    assert len(identities) == 4
    config = copy.deepcopy(expanded)
    config["mixer"]["options"]["1"]["expand_v"] = 1
    implied = run_id(config)
    del config["mixer"]["options"]["0"]["bias"], config["mixer"]["options"]["1"]["expand_v"]
    assert run_id(config) == implied != run_id(expanded)


def test_the_code_of_all_layers_counts(expanded):
    version = code_versions(expanded)["mixer"]
    assert version == code_version("mixerlab.mixers.attn", "mixerlab.mixers.gdn")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["mixer.layers=[attn,gdn]", "mixer.options.1.heads=4"], r"options.1.heads; gdn has: num_heads, .*backend$"),
        ([], "mixer.layers is missing"),
        (["mixer.layers=attn"], "mixer.layers='attn' must be a list"),
        (["mixer.layers=[]"], "must be a list"),
        (["mixer.layers=[5]"], "must be a list"),
        (["mixer.layers=[attn,nope]"], "there is no mixer 'nope'; there are: attn, gdn, mamba, mesa, parallax"),
        (["mixer.layers=['a b']"], "mixer.layers: there is no mixer 'a b'"),
        (["mixer.layers=['a=b']"], "mixer.layers: 'a=b'"),
        (["mixer.layers=[attn,hybrid]"], "hybrid is a hybrid"),
        (["mixer.layers=[attn,gdn,gdn]"], "model.n_layers=2 is not a multiple of the 3 layers .*set model.n_layers=3"),
        (["mixer.layers=[attn,gdn]", "mixer.options.2.num_heads=4"], "has layers 0 to 1, no 2"),
        (["mixer.layers=[attn,gdn]", "mixer.options.first.num_heads=4"], "has layers 0 to 1, no first"),
        (["mixer.layers=[attn,gdn]", "mixer.options=4"], "mixer.options=4 must be keys by layer"),
        (["mixer.layers=[attn,gdn]", "mixer.options.1=4"], "mixer.options.1=4 must be a group"),
        (["mixer.layers=[attn,gdn]", "mixer.options.1.num_heads=two"], "options.1.num_heads='two' must be a whole"),
        (["mixer.layers=[attn,gdn]", "mixer.options.1.num_heads=5"], r"^mixer.options.1 \(gdn\): mixer.num_heads=5 do"),
        (["mixer.layers=[attn,gdn]", "mixer.options.1._target_=nowhere.No"], "mixer.options.1=gdn: .*nowhere"),
        (["mixer.layers=[attn,gdn]", "+mixer.nope=4"], "unknown key mixer.nope; a hybrid has: name, layers, options"),
    ],
)
def test_refused_in_one_line(overrides, message, tmp_path):
    with pytest.raises(ValueError, match=message) as refused:
        run_state(mixerlab.compose(*HYBRID, f"results_dir={tmp_path}", *overrides))
    assert "\n" not in str(refused.value)


def test_a_config_that_nobody_expanded_is_refused(expanded):
    with pytest.raises(ValueError, match=r"compose a hybrid with mixerlab\.compose"):
        mixers_of(expanded["mixer"] | {"options": {}})


@pytest.fixture(scope="module")
def every_layer():
    """A config of one step with all mixers as layers, and its task."""
    layers = f"mixer.layers=[{','.join(MIXERS)}]"
    cfg = mixerlab.compose(*HYBRID, layers, f"model.n_layers={len(MIXERS)}", "optimizer.lr=0.01")
    task, _ = checked(cfg)
    cfg.model.n_layers = 2
    return cfg, task


def of_pair(every_layer, pair):
    cfg, task = every_layer
    cfg = cfg.copy()
    cfg.mixer.options = {str(i): cfg.mixer.options[str(MIXERS.index(name))] for i, name in enumerate(pair)}
    cfg.mixer.layers = list(pair)
    return cfg, task


def test_parameters_and_state_are_sums_over_layers(every_layer):
    def sizes(*pair):
        cfg, task = of_pair(every_layer, pair)
        cfg.model.n_layers = 4
        config = OmegaConf.to_container(cfg, resolve=True)
        parameters = build_model(cfg, task).parameters()
        return check_buildable(cfg, task, config), sum(parameter.numel() for parameter in parameters)

    both = zip(sizes("attn"), sizes("gdn"), strict=True)
    assert sizes("attn", "gdn") == tuple((one + other) // 2 for one, other in both)


def after_one_step(cfg, task, seeds, tokens, targets):
    population = Population(lambda: build_model(cfg, task), seeds).to(tokens.device)
    rates, schedule = [0.01] * len(seeds), component(cfg.schedule)
    optimizer = component(cfg.optimizer, population=population, lr=rates, schedule=schedule, total_steps=8)
    loss, _ = cross_entropy(population(tokens), targets)
    loss.sum().backward()
    gradient = population.parameters_by_replica.grad.clone()
    before = population.parameters_by_replica.detach().clone()
    optimizer.step()
    return loss.detach(), gradient, population.parameters_by_replica.detach() - before


def compare_pair(every_layer, pair, device, rtol, atol):
    """Two replicas together make the step that each makes by itself, with layers of the classes that were asked for."""
    cfg, task = of_pair(every_layer, pair)
    classes = [type(block.mixer).__name__ for block in build_model(cfg, task).blocks]
    assert classes == [layer._target_.rpartition(".")[2] for layer in mixers_of(cfg.mixer).values()]
    torch.manual_seed(0)
    tokens = torch.randint(task.vocab_size, (2, 3, task.input_length), device=device)
    targets = torch.randint(task.vocab_size, tokens.shape, device=device)
    together = after_one_step(cfg, task, (0, 1), tokens, targets)
    for row in range(2):
        by_itself = after_one_step(cfg, task, (row,), tokens[row : row + 1], targets[row : row + 1])
        for both, one in zip(together, by_itself, strict=True):
            assert both[row].isfinite().all() and both[row].any()
            torch.testing.assert_close(both[row], one[0], rtol=rtol, atol=atol)


PAIRS = list(itertools.permutations(("attn", "parallax", "gdn", "mamba", "mesa"), 2))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_a_pair_of_mixers_trains_side_by_side(every_layer, pair):
    compare_pair(every_layer, pair, "cpu", rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("pair", [("attn", "gdn"), ("mamba", "parallax")], ids="+".join)
def test_a_pair_of_mixers_trains_on_a_gpu(pair, tmp_path):
    """In captured steps, with kernels of both."""
    layers = f"mixer.layers=[{','.join(pair)}]"
    record = mixerlab.run(*HYBRID, layers, "model.d_model=64", "trainer.accelerator=gpu", f"results_dir={tmp_path}")
    assert {row["status"] for row in record.rows} == {"finished"} and record.provenance["notes"] == []
    assert set(record.provenance["backends"]) == set(pair)


def test_layers_of_one_mixer_are_the_plain_mixer(tmp_path):
    one, other = (
        mixerlab.run(*mixer, "task=icr", *TINY, f"results_dir={tmp_path}")
        for mixer in (["mixer=attn"], ["mixer=hybrid", "mixer.layers=[attn]"])
    )
    assert one["run_id"] != other["run_id"]
    own = ("run_id", "hparams")
    results = [[{k: v for k, v in row.items() if k not in own} for row in record["rows"]] for record in (one, other)]
    assert results[0] == results[1] and results[0][0]["mixer"] == "attn"


@pytest.mark.slow
def test_a_sweep_through_processes_has_a_column_for_each_hybrid(tmp_path, project):
    grid = ("-m", "mixer=hybrid,attn", "mixer.layers=[attn,gdn],[gdn,mine]", "task=icr", *TINY)
    outcome = run_py("--config-dir", str(project), *grid, f"results_dir={tmp_path}/results", "hydra/launcher=processes")
    assert outcome.code == 0 and "3 runs: 0 finished already, 3 to run" in outcome.out
    table = (tmp_path / "results" / "report" / "official" / "accuracy.md").read_text()
    assert table.splitlines()[0].replace(" ", "") == "|task|attn|attn+gdn|gdn+mine|"
    backends = [set(record["provenance"]["backends"]) for record in records(tmp_path / "results").values()]
    assert {"gdn", "mine"} in backends


@pytest.mark.parametrize("one_pattern", [True, False])
def test_in_a_sweep_the_layers_are_only_the_hybrids(one_pattern, tmp_path):
    layers = ["mixer.layers=[attn,gdn]", "mixer.options.1.d_conv=2"] if one_pattern else ["mixer.layers=[attn],[gdn]"]
    outcome = run_py("-m", "mixer=attn,hybrid", *layers, "task=icr", *TINY, f"results_dir={tmp_path}", "dry_run=true")
    cells = [line.split()[1] for line in outcome.out.splitlines() if line.endswith("to run")]
    assert cells == (["attn", "attn+gdn"] if one_pattern else ["attn", "attn", "gdn"])


def test_check_takes_each_layer_once(capsys, monkeypatch):
    seen = []

    def check_everything(config, name, make, d_model):
        seen.append((name, type(make()).__name__))
        return Decision(Execution.VMAP)

    monkeypatch.setattr(check, "check_everything", check_everything)
    assert check.main(["hybrid", "mixer.layers=[attn,gdn,attn]"]) == 0
    assert seen == [("attn", "Attention"), ("gdn", "GatedDeltaNet")]
