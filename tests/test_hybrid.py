"""`mixer=hybrid`: what its config becomes, what is refused, and that its layers train as they do in a plain model."""

import pytest
from command_line import TINY
from every_mixer import config_of as yaml_of
from omegaconf import OmegaConf

import mixerlab
from mixerlab.config.values import checked, code_versions
from mixerlab.records.code_version import code_version
from mixerlab.records.identity import run_id
from mixerlab.records.schema import labels_of_replicas

HYBRID = ("mixer=hybrid", "task=icr", *TINY)
MINE = "from mixerlab.mixers.attn import Attention\nclass Mine(Attention):\n    pass\n"


def config_of(*overrides, config_dir=None):
    return checked(mixerlab.compose(*overrides, config_dir=config_dir))[1]


@pytest.fixture
def project(own, tmp_path):
    (tmp_path / "mine_of_hybrids.py").write_text(MINE)
    mine = "defaults: [attn, _self_]\nname: mine\n_target_: mine_of_hybrids.Mine\nrope_base: ${model.d_model}\n"
    own("mixer/mine", mine)
    options = "options: {0: {num_heads: 4}, 1: {d_conv: 2}}"
    own("mixer/striped", f"defaults: [hybrid, _self_]\nname: striped\nlayers: [mine, gdn]\n{options}\n")
    return tmp_path / "conf"


@pytest.fixture(scope="module")
def expanded():
    return config_of(*HYBRID, "mixer.layers=[attn,gdn]")


def test_each_layer_has_the_config_that_its_mixer_has(expanded):
    mixer = expanded["mixer"]
    assert mixer["options"] == {str(i): OmegaConf.to_container(yaml_of(name)) for i, name in enumerate(mixer["layers"])}
    assert (mixer["name"], mixer["layers"]) == ("attn+gdn", ["attn", "gdn"])


def test_an_experiment_sets_what_it_sets_for_each_mixer():
    layers = mixerlab.compose(*HYBRID, "mixer.layers=[attn,gdn]", "experiment=madlab").mixer.options
    assert (layers["0"].num_heads, layers["0"].bias, layers["1"].num_heads) == (16, True, 2)


def test_mixers_and_hybrids_of_a_project_in_a_folder_of_any_name(project):
    folder = project.rename(project.with_name("my a(b), c k=v d'où"))
    mixer = config_of("mixer=striped", "task=icr", *TINY, "mixer.options.1.num_heads=4", config_dir=folder)["mixer"]
    mine, gdn = mixer["options"].values()
    assert (mixer["name"], mine["name"], mine["rope_base"], mine["num_heads"]) == ("striped", "mine", 16, 4)
    assert (gdn["num_heads"], gdn["d_conv"]) == (4, 2)


def test_the_identity_holds_every_layer(expanded):
    mixer, options = expanded["mixer"], expanded["mixer"]["options"]
    made = [options, dict(zip("10", options.values(), strict=True))]
    made += [options | {layer: options[layer] | {"num_heads": 4}} for layer in "01"]
    configs = [expanded | {"mixer": mixer | {"options": own}} for own in made]
    assert len({run_id(config) for config in configs}) == 4
    assert labels_of_replicas(configs[-1])[0]["hparams"]["mixer.options.1.num_heads"] == 4


def test_the_code_of_all_layers_counts(expanded):
    version = code_versions(expanded)["mixer"]
    assert version == code_version("mixerlab.mixers.attn", "mixerlab.mixers.gdn")
