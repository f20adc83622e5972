"""A user's own yamls and classes: what a run, a sweep, `mixerlab check` and Python take and refuse of them."""

import re

import pytest
from command_line import TINY, ran, refusal
from every_mixer import CONF
from omegaconf import OmegaConf
from test_imports import run_python

import mixerlab
from mixerlab.checks.command import main as check
from mixerlab.config.values import checked
from mixerlab.mixers.attn import Attention
from mixerlab.records.identity import run_id

YAML = "name: {name}\n_target_: mixerlab.mixers.attn.Attention\nnum_heads: 2\nqk_norm: true\nbias: false\n"
DRY = ("task=icr", *TINY, "dry_run=true")


def test_a_yaml_may_be_named_with_its_ending():
    for mode in ((), ("-m",)):
        ran(*mode, "mixer=attn.yaml", "task=icr.yaml", *DRY)
    assert mixerlab.compose("mixer=attn.yaml") == mixerlab.compose("mixer=attn")


@pytest.mark.parametrize(
    ("file", "parts"),
    [("mixer/mine", ("mixer=mine", "name: mine")), ("mixer/attn", ("conf/mixer/attn.yaml", "another"))],
)
def test_a_copied_yaml_is_refused_everywhere(own, file, parts):
    """By a sweep, a hybrid, the check and Python, in one line: tables would average it with attn."""
    options, mixer = own(file, YAML.format(name="attn")), file.removeprefix("mixer/")
    many = ("-m", f"mixer=attn,{mixer}"), ("mixer=hybrid", f"mixer.layers=[attn,{mixer}]")
    messages = [refusal(*options, *arguments, *DRY).rstrip("\n") for arguments in many]
    for function, arguments in ((check, [[mixer, *options]]), (mixerlab.compose, [f"mixer={mixer}"])):
        with pytest.raises(ValueError) as caught:
            function(*arguments, **({} if function is check else {"config_dir": options[1]}))
        messages.append(str(caught.value))
    for message in messages:
        assert "\n" not in message and all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("file", "text", "parts"),
    [
        ("mixer/mine", "", ("mixer=mine", "name: mine")),
        ("mixer/mine", f"# @package _global_\n{YAML.format(name='mine')}", ("mixer=mine", "@package")),
        ("mixer/mine", "name: mine\n_target_: : a.b\n", ("mine.yaml, line 2",)),
        ("task/mine", (CONF / "task" / "icr.yaml").read_text(), ("task=mine", "name: mine")),
        ("optimizer/mine", "defaults: [adamw]\n", ("optimizer=mine", "name: mine")),
        ("schedule/mine", "name: wsd\n_target_: mixerlab.training.schedules.WSD\n", ("schedule=mine", "name: mine")),
        ("experiment/small", "defaults: [{override /task: sc}]\n", ("experiment/small.yaml", "`# @package _global_`")),
        ("experiment/small", "# Small.\n# @package _global_\nseed: 1\n", ("experiment/small.yaml", "must begin")),
        # In the place of one of ours, which Hydra would take without a word.
        ("task/icr", "name: icr\n", ("conf/task/icr.yaml", "another")),
        ("hydra/launcher/slurm", "name: slurm\n", ("conf/hydra/launcher/slurm.yaml", "another")),
    ],
)
def test_a_yaml_that_cannot_be_one(own, file, text, parts):
    group, _, name = file.partition("/")
    with pytest.raises(ValueError) as caught:
        mixerlab.compose(f"{group}=mine" if name == "mine" else "mixer=gdn", config_dir=own(file, text)[1])
    assert "\n" not in str(caught.value) and all(part in str(caught.value) for part in parts)


def test_our_own_folder_is_no_users():
    assert mixerlab.compose("mixer=gdn", config_dir=CONF).mixer.name == "gdn"


CLASSES = """
from collections.abc import Sequence
from typing import Literal
from mixerlab.mixers.attn import Attention


class Fails(Attention):
    def __init__(self, d_model):
        raise KeyError(d_model)


class Thin(Attention):
    def __init__(self, dim=16): ...


class Needs(Attention):
    def __init__(self, d_model, rate): ...


class Defaults(Attention):
    def __init__(self, d_model, gate: bool = True, slope: float | None = None, scales=(1.0, 2.0), kind=int):
        super().__init__(d_model)


class Annotated(Attention):
    def __init__(
        self, d_model, dims: list[int] | None, rates: Sequence[float], table: dict | None, order: Literal[1, 2], plain
    ):
        super().__init__(d_model)
        assert type(plain) is list and type(plain[1]) is list, plain
"""


@pytest.fixture
def mine(own, tmp_path):
    module = f"classes_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(CLASSES)
    return lambda name, keys="": own("mixer/mine", f"name: mine\n_target_: {module}.{name}\n{keys}")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("Missing", ("Missing", "Fails, Thin, Needs")),
        ("Fails", ("mine", "KeyError", "Fails.__init__")),
        ("Thin", ("Thin must take d_model",)),
        ("Needs", ("rate is missing", "`rate: <value>`", "mine")),
    ],
)
def test_a_class_that_the_yaml_does_not_fit(mine, name, parts):
    options = mine(name)
    message = refusal(*options, "mixer=mine", *DRY)
    with pytest.raises(ValueError) as caught:
        check(["mine", *options])
    assert all(part in message and part in str(caught.value) for part in parts), message


def test_an_argument_that_the_yaml_lacks_can_be_added_for_a_run_and_for_check(mine):
    options = mine("Defaults")
    ran(*options, "mixer=mine", "+mixer.slope=0.5", *DRY)
    ran(*options, "check", "mine", "+mixer.slope=0.5", "model.d_model=16")


UNUSED = ("optimizer=adamw", "task=icr", "model.tie_embeddings=true", "mixer=gdn", "seed=1")
WRONG = ("model.d_model='wide'", "model.d_model=-4", "model.linear_std='no'")


@pytest.mark.parametrize("setting", [*UNUSED, *WRONG])
def test_a_check_refuses_a_setting_that_it_does_not_use_or_no_run_takes(setting, capsys):
    with pytest.raises(ValueError, match=re.escape(setting)):
        check(["value_average", setting])
    assert not capsys.readouterr().out


def test_a_check_names_the_layer_of_a_hybrid_once(mine):
    with pytest.raises(ValueError) as caught:
        check(["hybrid", "mixer.layers=[attn,mine]", *mine("Fails")])
    assert str(caught.value).startswith("mixer.options.1=mine: KeyError"), caught.value


class Gated(Attention):
    def __init__(self, d_model, gate):
        super().__init__(d_model, num_heads=1)
        self.gate = gate

    def forward(self, x):
        return self.gate(x).sigmoid() * super().forward(x)


def test_a_module_in_a_yaml_takes_the_width_of_the_model(own):
    gate = "gate: {_target_: torch.nn.Linear, in_features: '${model.d_model}', out_features: 1}\n"
    options = own("mixer/mine", f"name: mine\n_target_: {__name__}.Gated\n{gate}")
    for width in ((), ("model.d_model=16",)):
        check(["mine", *width, *options])
    model = mixerlab.build_model("mixer=mine", "task=icr", "model.d_model=16", config_dir=options[1])
    assert model.blocks[0].mixer.gate.in_features == 16


def test_values_are_compared_with_annotations(mine):
    keys = "dims: null\nrates: []\ntable: null\norder: 1\nplain: [1, [2]]\n"
    project = {"config_dir": mine("Annotated", keys)[1]}
    for fine in ("plain=[0,[1]]", "dims=[1,2]", "rates=[1,0.5]", "table={a: 1}", "order=2"):
        mixerlab.build_model("mixer=mine", "task=icr", f"mixer.{fine}", **project)
    for wrong, wanted in (
        ("mixer.dims=3", "a list or null"),
        ("mixer.order=true", "must be 1 or 2"),
        ("mixer.plain=no", "true or false"),
    ):
        with pytest.raises(ValueError, match=wanted):
            mixerlab.build_model("mixer=mine", "task=icr", wrong, **project)


def test_a_copied_yaml_may_get_its_name_on_purpose(own):
    ran(*own("optimizer/mine", "defaults: [adamw]\n"), "optimizer=mine", "optimizer.name=other", "mixer=attn", *DRY)


def test_a_default_of_a_constructor_is_part_of_the_identity(mine):
    """So that `+mixer.gate=false` is another run than one without: null and false count as absent. A class is none."""
    conf = mine("Defaults")[1]

    def identity(*overrides):
        return run_id(checked(mixerlab.compose("mixer=mine", "task=icr", *overrides, config_dir=conf))[1])

    without = identity()
    assert without == identity("+mixer.gate=true") == identity("+mixer.slope=null") == identity("+mixer.scales=[1,2]")
    assert without != identity("+mixer.gate=false")


LEVELS = """defaults: [/task_base@_here_, _self_]
name: mine
_target_: mixerlab.tasks.in_context_recall.InContextRecall
vocab_size: 8
num_train_examples: 40
frac_noise: 0.0
noise_vocab_size: 0
levels: {easy: {seq_len: 8}, 'T 12, c 3': {seq_len: 12}, (a): {seq_len: 16}}
"""


@pytest.mark.slow
def test_settings_may_have_names_that_need_quotes(own, tmp_path):
    tiny = [override for override in TINY if "seq_len" not in override and "vocab_size" not in override]
    command = (*own("task/mine", LEVELS), "-m", "mixer=attn", "task=mine", "task.setting=*", *tiny)
    ran(*command, f"results_dir={tmp_path / 'results'}")
    assert set(mixerlab.collect(tmp_path / "results")["setting"]) == {"easy", "T 12, c 3", "(a)"}


@pytest.mark.slow
def test_a_config_from_a_file_runs_with_the_classes_of_a_folder(mine, tmp_path):
    """In a process that has not composed it."""
    conf, saved = mine("Defaults")[1], tmp_path / "config.yaml"
    options = ["mixer=mine", "task=icr", *TINY, f"results_dir={tmp_path / 'results'}"]
    saved.write_text(OmegaConf.to_yaml(mixerlab.compose(*options, config_dir=conf)))
    run = f"mixerlab.run(config=OmegaConf.load({str(saved)!r}), config_dir={conf!r})"
    done = run_python(f"import mixerlab\nfrom omegaconf import OmegaConf\nprint({run}.status)")
    assert done.stdout.splitlines()[-1:] == ["finished"], done.stderr
