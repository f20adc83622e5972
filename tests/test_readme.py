"""The README's examples work as they stand."""

import re
import shlex

import mixer_contract
import pytest
import task_contract
from command_line import ROOT, TINY, result_of, run_py
from every_mixer import config_of, mixer_of
from hydra import compose, initialize_config_dir

import mixers
import tasks

README = (ROOT / "README.md").read_text()


def blocks(language):
    """The fenced code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def followed(tmp_path, monkeypatch):
    """A folder where the README's files stand; its classes can be imported as if from `mixers/` and `tasks/`."""
    for text in (*blocks("python"), *blocks("yaml")):
        path = tmp_path / text.splitlines()[0].removeprefix("# ")
        path.parent.mkdir(parents=True)
        path.write_text(text)
    for package in (mixers, tasks):
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path / package.__name__)])
    return tmp_path


def test_the_new_mixer_keeps_the_contract(followed):
    conf = followed / "conf"
    mixer_contract.check_everything(config_of("ema", conf), "ema", lambda: mixer_of("ema", 32, conf))


def test_the_new_mixer_trains_without_another_edit(followed):
    outcome = run_py(
        "--config-dir", str(followed / "conf"), "mixer=ema", "task=icr", *TINY, f"results_dir={followed / 'results'}"
    )
    assert outcome.code == 0, outcome.err
    record, _ = result_of(followed / "results")
    assert {(row["mixer"], row["status"]) for row in record["rows"]} == {("ema", "finished")}


def test_the_new_task_keeps_the_contract(followed):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        config = compose("config", ["task=delay", f"hydra.searchpath=[file://{followed / 'conf'}]"]).task
    task_contract.check_everything(config, "delay")


def test_the_new_task_trains_without_another_edit(followed):
    outcome = run_py(
        "--config-dir", str(followed / "conf"), "mixer=ema", "task=delay", *TINY, f"results_dir={followed / 'results'}"
    )
    assert outcome.code == 0, outcome.err
    record, _ = result_of(followed / "results")
    assert {(row["mixer"], row["task"], row["status"]) for row in record["rows"]} == {("ema", "delay", "finished")}


@pytest.mark.parametrize(("kind", "most"), [("mixer", 20), ("task", 25)])
def test_the_new_files_are_short(kind, most):
    texts = [text for text in (*blocks("python"), *blocks("yaml")) if re.match(rf"# (conf/)?{kind}s?/", text)]
    assert len(texts) == 2
    lines = [line for line in "".join(texts).splitlines() if line and not line.startswith(("#", "import", "from"))]
    assert len(lines) <= most


COMMANDS = [
    line.partition(" #")[0].strip().removeprefix("python run.py ")
    for block in blocks("bash")
    for line in block.replace(" && ", "\n").splitlines()
    if line.startswith("python run.py")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_compose(command, tmp_path):
    if command == "-m experiment=mad_table":
        command += " mixer=attn"  # the other mixers compose in the same way, in four times the time
    outcome = run_py(*shlex.split(command), "dry_run=true", f"results_dir={tmp_path}")
    assert outcome.code == 0, outcome.err
    assert outcome.out


def test_the_mixers_table_is_measured():
    from training.backbone import LanguageModel

    rows = re.findall(r"^\| `(\w+)` \|.*\| ([\d,]+) \| ([\d,]+) \|$", README, flags=re.MULTILINE)
    assert {name for name, _, _ in rows} == {"attn", "parallax", "gdn", "mamba", "mesa"}
    for name, parameters, state in rows:
        model = LanguageModel(16, 128, 2, lambda name=name: mixer_of(name, 128))
        assert f"{sum(p.numel() for p in model.parameters()):,}" == parameters
        assert f"{sum(block.mixer.state_size(128) for block in model.blocks):,}" == state
