"""What the command line and Python refuse, each mistake in one line that names it and says what to change."""

import os
from importlib import metadata

import pytest
from command_line import TINY, run_py
from hydra.errors import ConfigCompositionException

import mixerlab

ATTN = ("mixer=attn", "task=icr", *TINY)

REFUSED = [
    (["mixer.qk_norm=no"], "mixer.qk_norm='no'", "must be true or false"),
    (["force=off"], "force='off'", "must be true, false or changed"),
    (["dry_run=maybe"], "dry_run='maybe'", "must be true or false"),
    (["mixer.num_heads=1.0"], "mixer.num_heads=1.0", "must be a whole number"),
    (["mixer.rope_base=abc"], "mixer.rope_base='abc'", "must be a number"),
    (["optimizer.betas=[0.9]"], "optimizer.betas=[0.9]", "must be a list of 2: a number, a number"),
    (["optimizer.weight_decay=null"], "optimizer.weight_decay=None", "must be a number"),
    (["+trainer.nope=1"], "unknown key trainer.nope", "trainer.epochs"),
    (["~trainer.epochs"], "trainer.epochs is missing", "conf/"),
    (["+nope=1"], "unknown key nope; valid keys:", "results_dir"),
    (["~seed"], "seed is missing", "conf/"),
    (["model=big"], "model='big'", "model.<key>=<value>"),
    (["+model.nope=1"], "unknown key model.nope", "valid keys: model.d_model, model.n_layers"),
    (["~mixer._target_"], "mixer._target_ is missing", "conf/"),
    (['mixer.name="gdn, wide"'], "mixer.name='gdn, wide' must not hold ', '", "tables"),
    (["task.name=Avg"], "task.name=Avg is the row of the tasks' mean", "choose another name"),
    (['mixer.name="gdn ‡"'], "mixer.name='gdn ‡' must not hold", "nor end with ' ‡'"),
    (["~optimizer.lr"], "optimizer.lr is missing", "conf/"),
    (["trainer.epochs=abc"], "trainer.epochs='abc'", "must be a whole number"),
    (["mixer=nope"], "Could not find 'mixer/nope'", "parallax"),
    (["task=nope"], "Could not find 'task/nope'", "icr_challenge"),
    (["mixer=3"], "mixer=3 is a number, not a name; there are: attn, gdn", "--config-dir DIR adds your own"),
    (["mixer=nan"], "mixer=nan is a number, not a name; there are: attn", "parallax"),
    (["mixer=true"], "mixer=true is a truth value, not a name; there are: attn", "parallax"),
    (["mixer=null"], "mixer=null names nothing; there are: attn", "parallax"),
    (["~mixer"], "~mixer: mixer cannot be removed; there are: attn", "parallax"),
    (["mixer=[ema]"], "mixer=[ema] is a list, not a name; there are: attn", "parallax"),
    (["task=3"], "task=3 is a number, not a name; there are: cmp", "icr"),
    (["-m", "mixer=attn,3"], "mixer=3 is a number, not a name; there are: attn", "parallax"),
    (["optimizer=[1]"], "optimizer=[1] is a list of other things than names; there are: adamw, muon", "--config-dir"),
    (["-m", "mixer=gdn,[ema]"], "mixer=[ema] is a list, not a name; there are: attn", "parallax"),
    (
        ["-m", "hydra/launcher=processes", "hydra.launcher.n_jobs=0"],
        "error: hydra.launcher.n_jobs=0 must be a whole number of at least 1",
        "",
    ),
    (["hydra/launcher=3"], "hydra/launcher=3 is a number, not a name; there are: processes", "slurm"),
    (["task.setting=nope"], "task.setting=nope: icr has no such setting", "choose baseline, vocab_size-32"),
    (["task.nope=1"], "unknown key task.nope; valid keys of task=icr: task.setting", "task.seq_len"),
    (["mixer.half_life=2"], "unknown key mixer.half_life; ", "of its class can be set once its yaml has it"),
    (
        ["mixer.num_head=4"],
        "unknown key mixer.num_head; did you mean mixer.num_heads? valid keys of mixer=attn: ",
        "mixer.rope_base",
    ),
    (["trainer.max_epochs=4"], "unknown key trainer.max_epochs; did you mean trainer.epochs?", "trainer.batch_size"),
    (["mixr=attn"], "unknown key mixr; did you mean mixer? valid keys: model", "optimizer"),
    (["lr=0.1"], "unknown key lr; there is optimizer.lr; valid keys: model", "mixer"),
    (["task.setting=*"], "task.setting=*: icr has no such setting", "or with -m `*` for all"),
    (["report"], "report: settings are KEY=VALUE", ""),
    (["+mixer.nope=1"], "unknown key mixer.nope=1", "Attention takes: num_heads"),
    (["+mixer.d_model=16"], "unknown key mixer.d_model=16", "Attention takes: num_heads"),
    (["mixer._target_=torch.nn.Identity"], "Identity must be a", "SequenceMixer"),
    (
        ["mixer._target_=mixerlab.mixers.atn.Attention"],
        "error: mixer=attn: mixerlab.mixers.atn cannot be imported: ModuleNotFoundError",
        "mixers.atn",
    ),
    (["mixer._target_=mixerlab.mixers.attn.Atention"], "attn.py has no class Atention", "its classes: Attention"),
    (
        ["task._target_=mixerlab.tasks.in_context_recall.Recall"],
        "in_context_recall.py has no class Recall; its classes: InContextRecall",
        "error: task=icr: ",
    ),
    (["mixer._target_=os.system"], "mixer=attn: os.system is no class", ""),
    (["optimizer._target_=Muon"], "optimizer=muon: _target_='Muon' must be the dotted name of a class", ""),
    (["model.d_model=15"], "RoPE rotates pairs, and d_model=15 is odd", "choose an even model.d_model"),
    (["mixer=gdn", "model.d_model=15"], "mixer.num_heads=2 does not divide d_model=15", "choose a divisor"),
    (
        ["mixer._target_=mixers/ema.py"],
        "mixer=attn: _target_='mixers/ema.py' must be the dotted name",
        "mixers.ema.Mov",
    ),
    (["mixer=attn,gdn"], "mixer=attn,gdn has several values: give one, or -m for a sweep over them\n", ""),
    (["seed=0,1"], "seed=0,1 has several values: give one, or -m for a sweep", "or a list: 'seed=[0,1]'\n"),
    (["seed=choice(0,1)"], "seed=choice(0,1) has several values: give one, or -m for a sweep over them\n", ""),
    (["results_dir=a,b"], "results_dir=a,b has several values", "; quote the value if the comma belongs to it\n"),
    (["model.d_model=range(16,64)"], "model.d_model=range(16,64) has several values", "for a sweep over them\n"),
    (["mixer=conf/mixer/attn.yaml"], "mixer=conf/mixer/attn.yaml names a file: write mixer=attn\n", ""),
    (["task=icr.yaml"], "task=icr.yaml names a file: write task=icr\n", ""),
    (["-m", "mixer=gdn,attn.yaml"], "mixer=attn.yaml names a file: write mixer=attn\n", ""),
    (["--dry-run"], "there is no option --dry-run; settings are KEY=VALUE, without dashes", ""),
    (["optimizer.lr=[1e-3,", "5e-4]"], "optimizer.lr=[1e-3, ends with a comma", "quote the whole setting"),
    (["optimizer.lr=interval(1)"], "optimizer.lr=interval(1): TypeError while evaluating", "'end'"),
    (["+task.data_sha256=foo"], "unknown key task.data_sha256", "task.data_dir"),
    (["optimizer.lr=[1e-3"], "optimizer.lr=[1e-3 has a `[` or a `]` too many", "close it"),
    (["task.setting=a=b"], "task.setting=a=b cannot be read (mismatched input '=' expecting <EOF>)", "quote its value"),
    (["-m", "mixer=attn,", "gdn"], "mixer=attn, ends with a comma", "remove it or, if a space follows it, quote"),
    (["-m", "mixer=attn", ",gdn"], ",gdn begins with a comma", "leave out the space before it"),
    (
        ["mixer=hybrid", "mixer.num_heads=4", "mixer.layers=[attn,gdn]"],
        "unknown key mixer.num_heads; valid keys of mixer=hybrid: mixer.options, mixer.layers",
        "a key of a layer is mixer.options.<layer>.num_heads",
    ),
    (
        ["mixer=hybrid", "mixer.layers=[attn,gdn]", "mixer.options.num_heads=4"],
        "mixer.options.num_heads=4 names no layer",
        "a key of a layer is mixer.options.<layer>.num_heads",
    ),
    (
        ["mixer=hybrid", "mixer.layers=[attn,gdn]", "mixer.num_heads=4"],
        "unknown key mixer.num_heads; valid keys of mixer=hybrid: mixer.options, mixer.layers",
        "a key of a layer is mixer.options.<layer>.num_heads",
    ),
    (["model.d_model=18", "mixer.num_heads=6"], "heads of 3, and RoPE rotates pairs", "choose num_heads"),
    (["model.n_layers=0"], "model.n_layers=0", "at least 1"),
    (["task.vocab_size=3"], "task.vocab_size=3", "at least 4"),
    (["task=sc", "task.seq_len=20"], "task.seq_len=20: too short for task.num_tokens_to_copy=16", "at least 34"),
    (["optimizer.lr=0"], "optimizer.lr=0", "above 0"),
    (["optimizer.lr=[0.01,-1]"], "optimizer.lr=-1", "above 0"),
    (["optimizer.lr=nan"], "optimizer.lr=nan", "above 0"),
    (["optimizer.lr=fast"], "optimizer.lr='fast'", "above 0"),
    (["optimizer.lr=[]"], "optimizer.lr=[]", "give a number"),
    (["optimizer.lr=true"], "optimizer.lr=True", "above 0"),
    (["optimizer.lr=[0.01,0.01]"], "optimizer.lr=[0.01, 0.01] has 0.01 twice", "give each value once"),
    (["seed=1.5"], "seed=1.5", "whole number"),
    (["seed=-1"], "seed=-1", "whole number"),
    (["trainer.epochs=0"], "trainer.epochs=0", "at least 1"),
    (["trainer.epochs=1000000", "trainer.batch_size=2"], "trainer.epochs=1000000 makes ", "at most 16777216"),
    (["trainer.batch_size=0"], "trainer.batch_size=0", "at least 1"),
    (["trainer.precision=fp8"], "trainer.precision='fp8'", "choose auto"),
    (["trainer.accelerator=tpu"], "trainer.accelerator='tpu'", "choose auto"),
    (["schedule.decay=0"], "schedule.decay=0", "0 < decay"),
    (["task.data_dir=/nowhere"], "task.data_dir=/nowhere", "no such folder"),
    (["mixer=parallax", "mixer.backend=cuda"], "backend='cuda' is unknown", "choose one of auto"),
]


@pytest.mark.parametrize(("overrides", "message", "fix"), REFUSED, ids=[" ".join(case[0]) for case in REFUSED])
def test_bad_input_is_refused_in_a_few_lines(tmp_path, overrides, message, fix):
    outcome = run_py(*ATTN, f"results_dir={tmp_path}", *overrides)
    assert outcome.code == 1
    assert message in outcome.err and fix in outcome.err
    assert "Traceback" not in outcome.err and outcome.err.startswith("error: ") and outcome.err.count("\n") == 1
    assert not list(tmp_path.glob("*"))  # a refused configuration leaves nothing


def test_a_flag_without_an_annotation_is_no_string_either(tmp_path):
    outcome = run_py(*ATTN, f"results_dir={tmp_path}", "+logger.mine.flag=off")
    assert outcome.code == 1 and "logger.mine.flag=off would be read as a string" in outcome.err


def test_the_version_is_ours():
    for arguments in (["--version"], ["mixer=attn", "--version"]):
        assert run_py(*arguments).out == f"mixerlab {metadata.version('mixerlab')}\n"


def test_a_tool_that_there_is_not():
    outcome = run_py("reprot")
    assert (outcome.code, outcome.err) == (
        1,
        "error: no tool reprot: check, export, report; settings are KEY=VALUE\n",
    )


def test_a_results_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    outcome = run_py(*ATTN, f"results_dir={tmp_path / 'file' / 'results'}")
    assert outcome.code == 1 and "cannot be written" in outcome.err and "results_dir=DIR" in outcome.err


def test_hydras_tracebacks_are_there_for_whoever_wants_them(monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(ConfigCompositionException):
        run_py("mixr=attn")
    assert os.environ["HYDRA_FULL_ERROR"] == "1"


IN_PYTHON = [
    (["mixer=ema"], "Could not find 'mixer/ema'; there are: attn, gdn", "; config_dir=DIR or --config-dir"),
    (["mixer=3"], "mixer=3 is a number, not a name; there are: attn", "config_dir=DIR"),
    (["~mixer"], "~mixer: mixer cannot be removed; there are: attn", "parallax"),
    (["mixer=[ema]"], "mixer=[ema] is a list, not a name; there are: attn", "config_dir=DIR"),
    (["foo=1"], "unknown key foo; valid keys: model, seed", "experiment"),
    (
        ["mixer=attn", "mixer.num_head=4"],
        "unknown key mixer.num_head; did you mean mixer.num_heads?",
        "mixer.rope_base",
    ),
    (["mixer"], "mixer: settings are KEY=VALUE", ""),
    (["mixer=attn seed=1"], "mixer=attn seed=1: seed= begins another setting", "quote each setting by itself"),
    (["mixer=attn,gdn"], "mixer=attn,gdn describes a sweep, which `mixerlab -m` runs", "here give one value"),
    (["mixer=hybrid", "mixer.layers=attn,gdn"], "describes a sweep", "or a list: 'mixer.layers=[attn,gdn]'"),
    (["-m"], "-m is an option of the command line", "KEY=VALUE"),
    ([{"mixer": "ema"}], "override {'mixer': 'ema'} is a dict, not a string", "write 'mixer=attn', 'task=icr'"),
    ([["mixer=attn"]], "override ['mixer=attn'] is a list, not a string", "write 'mixer=attn', 'task=icr'"),
]


@pytest.mark.parametrize(("overrides", "message", "fix"), IN_PYTHON, ids=[str(case[0]) for case in IN_PYTHON])
def test_python_refuses_what_the_command_line_does_and_says_as_much(overrides, message, fix):
    for function in (mixerlab.compose, mixerlab.build_model, mixerlab.run):
        with pytest.raises(ValueError) as caught:
            function(*overrides)
        assert message in str(caught.value) and fix in str(caught.value) and "\n" not in str(caught.value)


def test_a_yaml_that_python_cannot_read_is_a_value_error(tmp_path):
    (tmp_path / "conf/mixer").mkdir(parents=True)
    (tmp_path / "conf/mixer/typo.yaml").write_text("name: typo\n_target_: : a.b\n")
    with pytest.raises(ValueError, match=r"typo\.yaml, line 2, column 11: mapping values are not allowed here"):
        mixerlab.compose("mixer=typo", config_dir=tmp_path / "conf")


def test_a_dry_run_from_python_is_refused_and_trains_nothing(tmp_path):
    given = (*ATTN, f"results_dir={tmp_path}", "dry_run=true")
    with pytest.raises(ValueError, match=r"dry_run=true: mixerlab\.run trains and returns a record; mixerlab\.compose"):
        mixerlab.run(*given)
    with pytest.raises(ValueError, match="dry_run=true"):
        mixerlab.run(config=mixerlab.compose(*given))
    assert not list(tmp_path.iterdir())
