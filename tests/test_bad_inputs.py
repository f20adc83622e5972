"""Bad inputs that users make: each is refused in one line that names it, before anything is trained or written."""

import os
from pathlib import Path

import pytest
import torch
from command_line import ATTN, refusal

import mixerlab
from mixerlab.analyse import analyse
from mixerlab.config.settings import build_task
from mixerlab.mixers.attn import Attention
from mixerlab.records.atomic import replace_file
from mixerlab.records.files import check_writable
from mixerlab.tasks.generated import make_split
from mixerlab.tasks.in_context_recall import InContextRecall

SEARCH, LR = "-m hydra/sweeper=optuna", "optimizer.lr=interval(1e-3,1e-2)"
# Overrides, and what their message names: the value, and the fix. First what Hydra refuses.
REFUSED = {
    "mixer=[attn]": ("mixer=attn", "a name", "--help"),
    "trainer=3": ("trainer", "a name", "--help"),
    "mixer=nope": ("mixer/nope", "parallax", "--config-dir DIR"),
    "-m mixer=attn,": ("mixer=attn,", "KEY=A,B"),
    "-m mixer.num_heads=": ("mixer.num_heads='' must be a whole number",),
    "mixr=attn": ("unknown key mixr", "did you mean mixer?"),
    "lr=0.1": ("unknown key lr", "did you mean optimizer.lr?"),
    "-m mixer=glob(zz*)": ("no run is asked for", "glob"),
    "~dry_run": ("dry_run", "missing"),
    "--experimental-rerun file": ("--experimental-rerun", "give the command again"),
    "mixer.num_head=4": ("mixer.num_head;", "did you mean mixer.num_heads?"),
    "mixer.half_life=2": ("mixer.half_life", "once its yaml has it"),
    "-m mixer=attn,gdn mixer.expand_w=1": ("mixer.expand_w;", "did you mean mixer.expand_v?"),
    "-m hydra/launcher=processes hydra.launcher.n_jobs=0": ("hydra.launcher.n_jobs=0", "a whole number of at least 1"),
    "-m hydra.launcher.n_jobs=2": ("hydra.launcher.n_jobs;", "hydra/launcher=processes"),
    "mixer=attn,gdn": ("mixer=attn,gdn", "-m"),
    "-m optimizer.lr=[1e-3, 5e-4]": ("optimizer.lr=[1e-3,", "Quote the whole setting"),
    "task.setting=a=b": ("task.setting=a=b", "quote a value"),
    "--dry-run": ("--dry-run", "KEY=VALUE"),
    "reprot": ("reprot", "KEY=VALUE"),
    "mixer=hybrid mixer.layers=[attn,gdn] mixer.num_heads=4": ("mixer.num_heads", "mixer.options.<layer>.num_heads"),
    "mixer=value_average mixer.num_heads=4": ("mixer.num_heads", "valid keys: none"),
    "model=big": ("model='big'", "group of keys"),
    f"{SEARCH} hydra.sweeper.n_trials=0 {LR}": ("hydra.sweeper.n_trials=0 must be a whole number of at least 1",),
    SEARCH: ("has no key to search",),
    f"{SEARCH} task.setting=* {LR}": ("one setting of a task",),
    f"{SEARCH} seed=0,1,2": ("seed=[0,1]",),
    f"{SEARCH} mixer=attn,mamba mixer.num_hed=1,2": ("unknown key mixer.num_hed",),
    "+mixer.d_model=64": ("mixer.d_model=64", "a run gives Attention its d_model"),
    "-m trainer.epochs=1,abc": ("must be a whole number",),
    "-m results_dir=here,there": ("a sweep has one folder",),
    "-m mixer=attn,gdn mixer.num_heads=16": ("RoPE rotates pairs",),  # of one mixer of two
}
UNFIT = {
    # Keys that no class takes, or that are not there.
    "+mixer.nope=1": ("mixer.nope=1", "Attention takes: num_heads"),
    "+nope=1": ("nope=1", "results_dir"),
    "~model": ("model is missing", "unless ~model"),
    "~optimizer.lr": ("optimizer.lr=None", "a list of such"),
    # Values: a string that counts as true, a fraction of an epoch, a number that is none.
    "force=off": ("force='off'", "true or false", "'changed'"),
    "trainer.epochs=2.5": ("trainer.epochs=2.5", "a whole number"),
    "trainer.epochs=0": ("trainer.epochs=0", "at least 1"),
    "trainer.epochs=1000000 trainer.batch_size=2": ("trainer.epochs=1000000", "at most 16777216"),
    "mixer.num_heads=???": ("mixer.num_heads", "no value"),
    "mixer.num_heads=${nothing}": ("mixer.num_heads", "nothing"),
    "mixer=parallax mixer.backend=cuda": ("'cuda'", "auto"),
    "optimizer.betas=[0.9]": ("optimizer.betas=[0.9]", "two numbers"),
    "optimizer.lr=0": ("optimizer.lr=0", "1e-30"),
    "optimizer.lr='1e-3,1e-2'": ("optimizer.lr='1e-3,1e-2'", "or a list"),
    "optimizer.lr=[]": ("optimizer.lr=[]", "a number, or a list"),
    "optimizer.lr=[0.01,0.01]": ("optimizer.lr=[0.01, 0.01]", "different"),
    "optimizer.lr=[0.1,1e31]": ("1e+31", "1e+30"),
    "seed=-1": ("seed=-1", "whole number"),
    "trainer.stop_above=2": ("trainer.stop_above=2", "[0, 1)"),
    "model.d_model=15": ("d_model=15", "does not divide"),
    "model.linear_std=-1": ("model.linear_std=-1", "above 0"),
    "task.setting=*": ("task.setting=*", "with -m"),
    "task.data_dir=/nowhere": ("task.data_dir=/nowhere", "no such folder"),
    "sweep=a/b": ("sweep='a/b'", "letters"),
    "dry_run=true": ("dry_run=true",),
    "model.d_ff=100": ("model.d_ff=100", "multiple of 16"),
    "model.match_params=nope": ("mixer/nope", "parallax"),
    "model.match_params=3": ("match_params=3", "a string or null"),
    "model.match_params=gdn model.d_ff=64": ("model.d_ff=64", "as well"),
    "mixer=mamba mixer.expand=64 model.match_params=attn": ("match_params=attn", "parameters"),
    "task.test_seq_len=33": ("task.test_seq_len=33: of the test rows, task.seq_len=33: must be even",),
    "results_dir=' '": ("results_dir=' '", "folder"),
    # Classes.
    "mixer._target_=torch.nn.Identity": ("Identity", "SequenceMixer"),
    "mixer._target_=mixerlab.mixers.atn.Attention": ("mixerlab.mixers.atn", "mixer=attn"),
    "mixer._target_=mixerlab.mixers.attn.Atention": ("Atention", "classes in mixerlab.mixers.attn: Attention"),
    "mixer._target_=mixers/ema.py": ("mixers/ema.py", "mixers.ema.MovingAverage"),
    "optimizer=torch optimizer.all._target_=torch.optim.SGD": ("optimizer.all={_target_: VALUE}",),
    "optimizer=torch optimizer.all={_target_:torch.optim.Nadam}": ("torch.optim.Nadam", "NAdam"),
    "optimizer=torch optimizer.all={_target_:torch.optim.SGD,lr:1}": ("optimizer.all.lr=1", "a run gives SGD its lr"),
    "+logger.mine._target_=nowhere.Logger": ("logger.mine", "nowhere"),
}


@pytest.mark.parametrize("command", REFUSED)
def test_a_bad_input_is_refused_by_name_in_one_line(tmp_path, command):
    if "optuna" in command:
        pytest.importorskip("optuna")
    message = refusal(*ATTN, f"results_dir={tmp_path}", *arguments_of(command))
    assert all(part in message for part in REFUSED[command]), message
    assert not list(tmp_path.glob("*"))  # a refused configuration leaves nothing


def arguments_of(command):
    return [command] if "'" in command else command.split(" ")


@pytest.mark.parametrize("command", UNFIT)
def test_what_fits_no_run_is_refused_by_name_in_one_line(tmp_path, command):
    """In Python, which composes in half the time: the command prints what is raised there."""
    with pytest.raises(ValueError) as caught:
        mixerlab.run(*ATTN, f"results_dir={tmp_path}", *arguments_of(command))
    assert all(part in str(caught.value) for part in UNFIT[command]), caught.value
    assert "\n" not in str(caught.value) and not list(tmp_path.glob("*"))


def test_what_hydra_refuses_or_is_no_override_or_no_config_is_refused_in_python():
    with pytest.raises(ValueError, match=r"^unknown key mixr; did you mean mixer\?"):
        mixerlab.compose("mixr=attn")
    with pytest.raises(ValueError, match="write 'mixer=attn'"):
        mixerlab.compose({"mixer": "ema"})
    with pytest.raises(ValueError, match=r"mixerlab\.compose or OmegaConf\.load"):
        mixerlab.run(config={"seed": 0})


@pytest.mark.parametrize("below", ["", "results"])
def test_a_results_folder_that_cannot_be_written_is_refused(tmp_path, below):
    (tmp_path / "file").touch()
    message = refusal(*ATTN, f"results_dir={tmp_path / 'file' / below}")
    assert str(tmp_path / "file") in message and "results_dir=DIR" in message


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_named(tmp_path, monkeypatch):
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr("tempfile.TemporaryFile", lambda **options: full)
        with pytest.raises(ValueError, match=f"results_dir='{tmp_path}'.*space"):
            check_writable(tmp_path)
    opened = os.open
    monkeypatch.setattr("os.open", lambda name, *flags: opened("/dev/full", os.O_WRONLY))
    with pytest.raises(OSError) as caught:
        replace_file(tmp_path / "record.json", "{}")
    assert caught.value.filename == str(tmp_path / "record.json")


class Ragged(InContextRecall):
    def generate_rows(self, num_rows, rng, split):
        rows = [[0] * (1 + number % 2) for number in range(num_rows)]
        return rows, rows


def generate_ragged(folder):
    task = mixerlab.compose("task=icr", f"task._target_={__name__}.Ragged").task
    make_split(build_task(task), "train")


def report_text(folder):
    (folder / "notes.txt").write_text("no archive")
    mixerlab.table(folder / "notes.txt")


# What a user does in Python or in a class, and what the message names.
MISTAKES = {
    lambda folder: mixerlab.check("attn"): ("'attn'", "class"),
    lambda folder: mixerlab.check(Attention(16, num_heads=1)): ("Attention", "class"),
    lambda folder: mixerlab.check(torch.nn.Identity): ("Identity", "subclass of mixerlab.SequenceMixer"),
    lambda folder: mixerlab.build_model("task=icr", mixer=Attention): ("Attention", "SequenceMixer"),
    lambda folder: mixerlab.build_model("task=icr", mixer=torch.nn.Sequential(torch.nn.Identity())): ("Sequential",),
    lambda folder: analyse(["/nowhere"]): ("/nowhere is no folder of a run",),
    generate_ragged: ("length", "-100", "Ragged.generate_rows"),
    report_text: ("notes.txt", ".tar.xz"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_python_is_named(tmp_path, mistake):
    with pytest.raises(ValueError) as caught:
        mistake(tmp_path)
    assert "\n" not in str(caught.value)
    assert all(part in str(caught.value) for part in MISTAKES[mistake]), caught.value
