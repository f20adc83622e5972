"""A user's own yamls: what a run, a sweep, `mixerlab check` and Python refuse of them before they build anything."""

import subprocess
import sys

import pytest
from command_line import ROOT, TINY, run_py
from every_mixer import CONF
from omegaconf import OmegaConf

import mixerlab
from mixerlab.checks.command import main as check

YAML = "name: {name}\n_target_: mixerlab.mixers.attn.Attention\nnum_heads: 2\nqk_norm: true\nbias: false\n"


def refused_everywhere(options, mixer, message, capsys):
    """A run, a sweep, a hybrid, the check and Python say the same."""
    dry = ("task=icr", *TINY, "dry_run=true")
    for given in ([f"mixer={mixer}"], ["-m", f"mixer=attn,{mixer}"], ["mixer=hybrid", f"mixer.layers=[attn,{mixer}]"]):
        outcome = run_py(*options, *given, *dry)
        assert (outcome.code, outcome.err) == (1, f"error: {message}\n")
    assert check([mixer, *options]) == 1
    assert capsys.readouterr().err == f"error: {mixer}: {message}\n"
    with pytest.raises(ValueError) as caught:
        mixerlab.compose(f"mixer={mixer}", config_dir=options[1])
    assert str(caught.value) == message


@pytest.mark.parametrize("text", [YAML.format(name="attn"), "defaults: [attn]\n"], ids=["copied", "inherited"])
def test_a_name_that_is_not_the_files(own, text, capsys):
    """Tables would average it with the mixer whose name it has."""
    message = "mixer=myattn: `name: attn` in its yaml must be the file's name: write `name: myattn`"
    refused_everywhere(own("mixer/myattn", text), "myattn", message, capsys)


COPIES = {
    "task": ("short", (CONF / "task" / "icr.yaml").read_text(), "icr"),
    "optimizer": ("adam", "defaults: [adamw]\n", "adamw"),
    "schedule": ("mine", "name: wsd\n_target_: mixerlab.training.schedules.WSD\n", "wsd"),
}


@pytest.mark.parametrize("group", COPIES)
def test_a_copied_yaml_needs_a_name_of_its_own(own, group):
    """Tables would average its runs with those of the yaml that was copied."""
    file, text, name = COPIES[group]
    options, given = own(f"{group}/{file}", text), (f"{group}={file}", "mixer=attn", *TINY, "dry_run=true")
    message = f"error: {group}={file}: `name: {name}` in its yaml must be the file's name, by which tables call it:"
    for command in (given, ("-m", *given)):
        outcome = run_py(*options, *command)
        assert (outcome.code, outcome.err) == (1, f"{message} write `name: {file}`\n")
    assert run_py(*options, *given, f"{group}.name=other").code == 0


def test_a_name_that_is_set_on_purpose(own):
    options = own("mixer/myattn", YAML.format(name="myattn"))
    for given in (["mixer.name=other"], ["mixer.name=other", "mixer._target_=mixerlab.mixers.attn.Attention"]):
        assert "name: other" in run_py(*options, "mixer=myattn", "task=icr", *TINY, *given, "dry_run=true").out


@pytest.mark.parametrize(
    ("text", "key"),
    [("name: bare\n", "_target_"), ("_target_: mixerlab.mixers.attn.Attention\n", "name"), ("", "name")],
    ids=["no class", "no name", "empty"],
)
def test_a_yaml_that_lacks_a_key(own, text, key, capsys):
    message = f"the yaml of mixer=bare lacks the key {key}"
    refused_everywhere(own("mixer/bare", text), "bare", message, capsys)


@pytest.mark.parametrize("file", ["mixer/gdn", "task/icr", "optimizer/muon", "hydra/launcher/slurm"])
def test_a_yaml_in_the_place_of_one_of_ours(own, file, capsys):
    """Hydra would take ours, without a word."""
    options = own(file, YAML.format(name="gdn"))
    group, _, name = file.rpartition("/")
    message = f"conf/{file}.yaml: mixerlab has a {group} {name}; choose another name"
    refused_everywhere(options, "gdn", message, capsys)


def test_our_own_folder_is_no_users_folder():
    assert mixerlab.compose("mixer=gdn", config_dir=CONF).mixer.name == "gdn"


def test_a_folder_that_is_not_there(tmp_path, capsys):
    assert check(["attn", "--config-dir", str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err == f"error: attn: --config-dir {tmp_path / 'nowhere'}: there is no such folder\n"


def test_a_yaml_that_cannot_be_read(own, tmp_path, capsys):
    options = own("mixer/typo", "name: typo\n_target_: : a.b\n")
    message = f"{tmp_path}/conf/mixer/typo.yaml, line 2, column 11: mapping values are not allowed here\n"
    for given in (["mixer=typo"], ["-m", "mixer=attn,typo"]):
        assert run_py(*options, *given)[::2] == (1, f"error: {message}")
    assert check(["typo", *options]) == 1
    assert capsys.readouterr().err == f"error: typo: {message}"


BROKEN = "class Fails:\n    def __init__(self, d_model):\n        raise KeyError(d_model)\n"


def test_the_check_says_each_thing_once(own, tmp_path, capsys):
    (tmp_path / "only_fails.py").write_text(BROKEN)
    own("mixer/missing", "name: missing\n_target_: only_fails.Missing\n")
    options = own("mixer/unknown", "name: unknown\n_target_: no_such_module.Mixer\n")
    messages = {
        "missing": f"missing: {tmp_path}/only_fails.py has no class Missing; its classes: Fails",
        "unknown": "unknown: no_such_module cannot be imported: ModuleNotFoundError: No module named 'no_such_module';"
        f" looked beside the yamls, in {tmp_path}",
    }
    for mixer, message in messages.items():
        assert check([mixer, *options]) == 1
        assert capsys.readouterr().err == f"error: {message}\n"
        assert run_py(*options, f"mixer={mixer}").err == f"error: mixer={message}\n"


def test_the_check_of_a_mixer_that_is_not_found_names_the_option(capsys):
    assert check(["cmean"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: cmean: In 'config': Could not find 'mixer/cmean'; there are: attn, gdn")
    assert said.endswith("; config_dir=DIR or --config-dir DIR adds your own, as mixer/cmean.yaml in that folder\n")
    assert said.count("\n") == 1
    with pytest.raises(SystemExit):
        check([])
    assert capsys.readouterr().err.endswith("required: name\n")


def test_a_mixer_is_named_without_the_suffix_of_its_yaml(own, capsys):
    options = own("mixer/mine", YAML.format(name="mine"))
    for file in ("mine.yaml", "conf/mixer/mine.yaml", "mine.yml"):
        assert check([file, *options]) == 1
        assert capsys.readouterr().err == f"error: {file}: mixer={file} names a file: write mixer=mine\n"
    assert check(["hybrid", "mixer.layers=[mine.yaml,attn]", *options]) == 1
    assert "mixer=mine.yaml: give the name without its suffix: mine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("self, rate=1.0", "mixer: Mine must take d_model, which a run gives it"),
        (
            "self, d_model, rate",
            "rate is missing, which Mine takes: add `rate: <value>` to the yaml of mixer=mine",
        ),
    ],
)
def test_a_constructor_that_the_yaml_does_not_fit(own, tmp_path, signature, message):
    name = f"unfit_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(
        f"from mixerlab import SequenceMixer\nclass Mine(SequenceMixer):\n    def __init__({signature}): ...\n"
    )
    options = own("mixer/mine", f"name: mine\n_target_: {name}.Mine\n")
    outcome = run_py(*options, "mixer=mine", "task=icr", *TINY, "dry_run=true")
    assert outcome.code == 1 and message in outcome.err and len(outcome.err.splitlines()) == 1


def test_the_check_is_made_at_a_width(capsys):
    assert check(["attn", "mixer.num_heads=3", "model.d_model=48"]) == 0
    assert check(["mixer=attn", "mixer.num_heads=3"]) == 1
    said = capsys.readouterr().err
    assert said.endswith(" (checked at d_model=32; model.d_model=... checks at another width)\n"), said


@pytest.mark.parametrize("args", [["attn", "task=sc"], ["attn,gdn"], ["mixer=[attn, gdn]"], ["attn", "gdn"], ["a=2"]])
def test_what_the_check_takes(args, capsys):
    assert check(args) == 1
    said = capsys.readouterr().err
    assert args[-1].removeprefix("mixer=") in said and "mixerlab check NAME mixer.KEY=VALUE model.KEY=VALUE" in said


def test_a_value_that_leads_nowhere(own, capsys):
    assert check(["mine", *own("mixer/mine", YAML.format(name="mine") + "rope_base: ${nowhere}\n")]) == 1
    said = capsys.readouterr().err
    assert said == "error: mine: mixer.rope_base: Interpolation key 'nowhere' not found\n", said


def test_a_module_in_place_of_its_class(own, tmp_path, capsys):
    name = f"module_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(BROKEN)
    (tmp_path / f"package_{tmp_path.name}").mkdir()
    (tmp_path / f"package_{tmp_path.name}" / "own.py").write_text(BROKEN)
    for target in (f"package_{tmp_path.name}.own", "mixerlab.mixers.attn"):
        options = own("mixer/mine", f"name: mine\n_target_: {target}\n")
        assert check(["mine", *options]) == 1
        message = f"_target_={target} is a module: write {target}.<Class>, the name of a class in it"
        assert capsys.readouterr().err == f"error: mine: {message}\n"


def test_a_class_of_a_script_is_refused(own, capsys):
    assert check(["mine", *own("mixer/mine", "name: mine\n_target_: __main__.Mine\n")]) == 1
    assert "a class in a script or notebook cannot be a run's: put it in a module" in capsys.readouterr().err


def test_a_second_copy_of_a_project_is_not_taken_for_the_first(tmp_path):
    """As in a notebook that looks at an old and a new copy."""
    name = f"twice_{tmp_path.name}"
    for copy in ("a", "b"):
        folder = tmp_path / copy / "conf" / "mixer"
        folder.mkdir(parents=True)
        (folder / "mine.yaml").write_text(YAML.format(name="mine").replace("mixerlab.mixers.attn", name))
        (tmp_path / copy / f"{name}.py").write_text("from mixerlab.mixers.attn import Attention\n")
    mixerlab.build_model("mixer=mine", "task=icr", config_dir=tmp_path / "a" / "conf")
    with pytest.raises(ValueError, match=rf"{name} is .*/b/{name}.py, and this process has imported .*/a/.*: restart"):
        mixerlab.build_model("mixer=mine", "task=icr", config_dir=tmp_path / "b" / "conf")


@pytest.mark.parametrize("group", ["mixer", "task", "optimizer", "schedule"])
def test_a_yaml_with_the_first_line_of_an_experiment(own, group):
    options = own(f"{group}/mine", f"# @package _global_\n{YAML.format(name='mine')}")
    outcome = run_py(*options, "mixer=attn", f"{group}=mine", "dry_run=true")
    assert outcome.code == 1
    assert outcome.err.startswith(f"error: {group}=mine: its yaml puts its keys elsewhere than under `{group}`: remove")


LISTS = """
from mixerlab.mixers.attn import Attention


class Mine(Attention):
    def __init__(self, d_model, sizes, table):
        super().__init__(d_model)
        assert type(sizes) is list and type(sizes[1]) is list and type(table) is dict, (sizes, table)
"""


def test_a_mixer_gets_lists_and_dicts_of_python(own, tmp_path):
    """PyTorch takes no ListConfig as a shape or as sizes."""
    name = f"lists_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(LISTS)
    own("mixer/mine", f"name: mine\n_target_: {name}.Mine\nsizes: [1, [2]]\ntable: {{a: 1}}\n")
    mixerlab.build_model("mixer=mine", "task=icr", config_dir=tmp_path / "conf")


ANNOTATED = """
from collections.abc import Sequence
from mixerlab.mixers.attn import Attention


class Mine(Attention):
    def __init__(
        self,
        d_model,
        dims: list[int] | None,
        rates: Sequence[float],
        table: dict | None,
        pair: tuple[int, str],
        many: tuple[int, ...],
        some: list[int | None],
    ):
        super().__init__(d_model)
"""


REST = "rates: []\ntable: null\npair: [1, a]\nmany: [1]\nsome: [1, null]\n"


def test_items_of_a_list_are_compared_with_its_annotation(own, tmp_path):
    name = f"annotated_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(ANNOTATED)
    own("mixer/mine", f"name: mine\n_target_: {name}.Mine\ndims: null\n" + REST)
    mine = {"config_dir": tmp_path / "conf"}
    mixerlab.build_model(
        "mixer=mine", "task=icr", "mixer.dims=[1,2]", "mixer.rates=[1,0.5]", "mixer.table={a: 1}", **mine
    )
    for given, message in (
        ("mixer.dims=3", r"mixer.dims=3 must be a list, each a whole number or null"),
        ("mixer.dims=[1,a]", r"mixer.dims=\[1, 'a'\] must be a list, each a whole number or null"),
        ("mixer.rates=[1,true]", r"mixer.rates=\[1, True\] must be a list, each a number"),
        ("mixer.pair=[1]", r"mixer.pair=\[1\] must be a list of 2: a whole number, a string"),
        ("mixer.many=[a]", r"mixer.many=\['a'\] must be a list, each a whole number"),
        ("mixer.some=[a]", r"mixer.some=\['a'\] must be a list, each a whole number or null"),
        ("mixer.table=[1]", r"mixer.table=\[1\] must be a mapping, {key: value} or null"),
    ):
        with pytest.raises(ValueError, match=message):
            mixerlab.build_model("mixer=mine", "task=icr", given, **mine)


def test_an_experiment_without_its_first_line(own):
    outcome = run_py(*own("experiment/mine", "seed: [0, 1]\n"), "mixer=attn", "experiment=mine", "dry_run=true")
    message = "error: the experiment's yaml must begin with the line `# @package _global_` (sweeps/README.md)\n"
    assert (outcome.code, outcome.err) == (1, message)


def test_choices_of_a_grid_are_a_string(own):
    grid = "# @package _global_\nhydra: {mode: MULTIRUN, sweeper: {params: {mixer: [attn, gdn]}}}\n"
    outcome = run_py(*own("experiment/mine", grid), "experiment=mine", "dry_run=true")
    message = "error: hydra.sweeper.params.mixer is no string: write its choices as `mixer: one,other`"
    assert outcome.code == 1 and outcome.err.splitlines()[-1] == message


def test_a_single_run_says_that_it_leaves_a_grid_out(own):
    grid = "# @package _global_\nhydra: {sweeper: {params: {mixer: 'attn,gdn'}}}\n"
    outcome = run_py(*own("experiment/mine", grid), "mixer=attn", "experiment=mine", "dry_run=true")
    assert "one run, and not the grid mixer=attn,gdn of experiment=mine: -m trains it" in outcome.out + outcome.err


IMPORTS = "from mixerlab.mixers.attn import Attention\nfrom {0}.mine import FACTOR\nclass Mine(Attention): pass\n"


@pytest.mark.parametrize("with_init", [False, True])
@pytest.mark.parametrize("folder", ["kernels", "models"])
def test_a_project_may_have_folders_of_our_names(tmp_path, folder, with_init):
    """From a checkout, whose own folders of these names stand on the path too."""
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "mine.py").write_text("FACTOR = 1\n")
    if with_init:
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "own.py").write_text(IMPORTS.format(folder))
    (tmp_path / "conf" / "mixer").mkdir(parents=True)
    (tmp_path / "conf" / "mixer" / "mine.yaml").write_text("name: mine\n_target_: own.Mine\n")
    given = ["--config-dir", tmp_path / "conf", "mixer=mine", "task=icr", "dry_run=true"]
    done = subprocess.run([sys.executable, ROOT / "run.py", *given], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


LEVELS = """defaults: [/task_base@_here_, _self_]
name: mine
_target_: mixerlab.tasks.in_context_recall.InContextRecall
setting: easy
vocab_size: 8
num_train_examples: 40
frac_noise: 0.0
noise_vocab_size: 0
levels: {easy: {seq_len: 8}, 'T 12, c 3': {seq_len: 12}, (a): {seq_len: 16}}
"""


def test_settings_may_have_names_that_need_quotes(own, tmp_path):
    tiny = [override for override in TINY if "seq_len" not in override and "vocab_size" not in override]
    command = (*own("task/mine", LEVELS), "-m", "mixer=attn", "task=mine", "task.setting=*", *tiny)
    outcome = run_py(*command, f"results_dir={tmp_path / 'results'}")
    assert outcome.code == 0, outcome.err
    assert set(mixerlab.collect(tmp_path / "results")["setting"]) == {"easy", "T 12, c 3", "(a)"}


def test_a_composed_config_runs_with_the_classes_of_its_folder(own, tmp_path):
    """In a process that has not composed it."""
    (tmp_path / "elsewhere.py").write_text("from mixerlab.mixers.attn import Attention\nclass Mine(Attention): pass\n")
    own("mixer/mine", "name: mine\n_target_: elsewhere.Mine\n")
    options = ["mixer=mine", "task=icr", *TINY, f"results_dir={tmp_path / 'results'}"]
    saved = tmp_path / "config.yaml"
    script = """
import sys, mixerlab
from omegaconf import OmegaConf
print(mixerlab.run(config=OmegaConf.load(sys.argv[1]), config_dir=sys.argv[2]).status)
"""
    cfg = mixerlab.compose(*options, config_dir=tmp_path / "conf")
    saved.write_text(OmegaConf.to_yaml(cfg))
    command = [sys.executable, "-c", script, str(saved), str(tmp_path / "conf")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1:] == ["finished"], done.stderr
