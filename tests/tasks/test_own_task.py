"""A task of the user's own: rows that are not as they must be are refused by name."""

import math
import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import TINY, records, run_py

from mixerlab.config.compose import compose
from mixerlab.config.settings import build_task, setting_name
from mixerlab.loading import load
from mixerlab.records.schema import Record, Score
from mixerlab.tasks.base import Task, TaskRuleError
from mixerlab.tasks.data import load_or_generate
from mixerlab.tasks.generated import WrongRows, make_split

SIZES = dict(vocab_size=16, seq_len=12, num_train_examples=200, num_val_examples=40, num_test_examples=40, data_seed=1)


class Own(Task):
    """Random tokens; the target is the token itself. Subclasses draw other rows."""

    def generate_rows(self, num_rows, rng, split):
        inputs = rng.integers(self.vocab_size, size=(num_rows, self.seq_len))
        return inputs, inputs.copy()

    def check_rules(self, inputs, targets, split):
        wrong = (inputs != targets).any(axis=1)
        if wrong.any():
            raise TaskRuleError("targets", int(np.argmax(wrong)), "the target is the input")


def task_of(rows=Own.generate_rows, **sizes):
    """A task with `rows(task, num_rows, rng, split)` as its `generate_rows`."""
    return type("Mine", (Own,), {"generate_rows": rows})(**SIZES | sizes)


def changed(change):
    return lambda *arguments: change(*Own.generate_rows(*arguments))


def one_row_wrong(inputs, targets):
    targets = targets.copy()
    targets[len(targets) // 2, 3] ^= 1
    return inputs, targets


def too_high(inputs, targets):
    inputs = inputs.copy()
    inputs[7, 3] = 16
    return inputs, targets


def global_numpy(task, num_rows, rng, split):
    inputs = np.random.randint(0, task.vocab_size, (num_rows, task.seq_len))  # noqa: NPY002
    return inputs, inputs


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (changed(lambda i, t: (i + 0.5, t)), r"^train inputs: dtype is float64, must be int64"),
        (changed(lambda i, t: (i[:, 1:], t)), r"^train inputs: shape is \(32, 11\), must be \(32, 12\)"),
        (changed(lambda i, t: i), r"^train rows: found ndarray, must be \(inputs, targets\).*\(32, 12\)"),
        (changed(too_high), r"^train inputs, row 7: position 3: found 16, must be in 0..15 \(task.vocab_size=16\)"),
        (changed(lambda i, t: (i, t - 20)), r"^train targets, row 0: position 0: found -\d+, .* 0..15 .* or -100"),
        (changed(one_row_wrong), r"^train targets, row \d+: the target is the input, .* Own.check_rules \(.*:\d+\)"),
        (global_numpy, r"^train rows differ when they are generated again from the same seed: .* `rng`"),
    ],
)
def test_wrong_rows_are_refused(rows, message):
    with pytest.raises(WrongRows, match=message) as caught:
        make_split(task_of(rows), "train")
    assert f"({__file__}:" in str(caught.value)


def fixed_seed(task, num_rows, rng, split):
    return Own.generate_rows(task, num_rows, np.random.default_rng(0), split)


def test_splits_that_repeat_each_other_are_refused():
    task = task_of(fixed_seed, num_train_examples=128)
    with pytest.raises(WrongRows, match=r"^val rows begin as those of train: .*task.allow_shared_rows=true$"):
        load_or_generate(task)
    assert len(load_or_generate(task, allow_shared_rows=True)["train"][0]) == 128


def test_rows_may_be_shared_by_chance():
    """In a small space of rows every val row is in train, also if the splits are tiny or all rows are one."""
    load_or_generate(task_of(vocab_size=2, seq_len=5))
    for sizes in (dict(vocab_size=1), dict(vocab_size=2, seq_len=1), dict(vocab_size=4, seq_len=4)):
        for count in (1, 3, 32, 300):
            load_or_generate(task_of(num_train_examples=count, num_val_examples=count, **sizes))


@dataclass(kw_only=True, eq=False)
class Echo(Own):
    madlab_code = "E"
    broken: bool

    def generate_rows(self, num_rows, rng, split):
        return {}["x"] if self.broken else super().generate_rows(num_rows, rng, split)


YAML = f"""
defaults: [/task_base@_here_, _self_]
name: echo
_target_: {__name__}.Echo
vocab_size: 16
seq_len: 16
num_train_examples: 40
broken: false
"""


@pytest.fixture
def project(own):
    return own("task/echo", YAML)


@pytest.mark.slow
def test_a_run_whose_task_fails_is_recorded(project, tmp_path):
    results = tmp_path / "results"
    grid = (*project, "mixer=attn", "task=echo", *TINY, f"results_dir={results}")
    single = run_py(*grid, "task.broken=true")
    line = Echo.generate_rows.__code__.co_firstlineno + 1
    message = f"task=echo: train rows: KeyError: 'x', in Echo.generate_rows ({__file__}:{line})"
    assert (single.code, single.err) == (1, f"error: {message}\n")
    sweep = run_py("-m", *grid, "task.broken=false,true")
    assert sweep.code == 1 and message in sweep.err and "Traceback" not in sweep.err
    found = {record["status"]: record for record in records(results).values()}
    assert set(found) == {"finished", "failed"} and found["failed"]["error"] == message
    Record.from_json(found["failed"])
    (error,) = results.glob("runs/*/error.txt")
    assert __file__ in error.read_text()
    (table,) = results.glob("sweeps/*/report/official/settings.md")
    assert "failed" in table.read_text()
    assert "2 runs: 1 finished already, 1 to run" in run_py("-m", *grid, "task.broken=false,true").out


class Bits(Echo):
    score = Score("bits_per_token", higher_is_better=False)

    def score_from(self, means, split):
        return means["loss"] / math.log(2)

    def generate_rows(self, num_rows, rng, split):
        inputs, _ = super().generate_rows(num_rows, rng, split)
        return inputs, rng.integers(self.vocab_size, size=inputs.shape)  # noise: training on it makes test worse

    def check_rules(self, inputs, targets, split):
        pass


def test_a_task_has_a_score_of_its_own_and_less_is_better(project, tmp_path):
    """Its columns, the checkpoints and rates that are chosen by it, when it stops, and what it is called."""
    run = ("mixer=attn", "task=echo", f"task._target_={__name__}.Bits", *TINY, f"results_dir={tmp_path}")
    run = (*project, *run, "optimizer.lr=[0.1,1e-5]", "task.num_test_examples=32")
    assert "must be an accuracy" in run_py(*run, f"task._target_={__name__}.Echo", "trainer.stop_above=3").err
    outcome = run_py(*run)
    assert outcome.code == 0 and "bits per token on test" in outcome.out
    ((identity, record),) = records(tmp_path).items()
    assert record["provenance"]["command"].endswith(f"run.py {shlex.join(run)}")  # with the options where they were
    metrics = pd.read_csv(tmp_path / "runs" / identity / "metrics.csv")
    assert np.allclose(metrics["test_bits_per_token"], metrics["test_loss"] / np.log(2))
    for row, (_, own) in zip(record["rows"], metrics.groupby("replica"), strict=True):
        for place, split in (("official", "test"), ("clean", "val")):
            epoch = own.loc[own[f"{split}_bits_per_token"].idxmin()]
            assert row[f"{place}_epoch"] == epoch["epoch"]
            assert row[f"{place}_bits_per_token"] == pytest.approx(epoch["test_bits_per_token"])
        assert "steps_to_90" not in row and "official_accuracy" not in row
    assert 0 in {row["official_epoch"] for row in record["rows"]}  # and not the last one
    best = min(record["rows"], key=lambda row: row["official_bits_per_token"])
    assert load(tmp_path / "runs" / identity, config_dir=project[1]).row == best
    run_py(*run, f"results_dir={tmp_path / 'stopped'}", "trainer.stop_above=100")
    (stopped,) = records(tmp_path / "stopped").values()
    assert {row["steps"] for row in stopped["rows"]} == {3}  # one epoch: all are below 100


class Averaged(Bits):
    def score_from(self, means, split):
        return means["loss"].mean()  # over the replicas


class Unbounded(Bits):
    def score_from(self, means, split):
        return means["loss"] / 0


class Percent(Bits):
    score = Score("top_accuracy")

    def score_from(self, means, split):
        return 100 - means["loss"]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Averaged, "bits_per_token: score_from gives a tensor [], and must give a tensor [2]"),
        (Unbounded, "bits_per_token: score_from gives inf on val after epoch 1, where the loss is"),
        (Percent, "top_accuracy: score_from gives 9"),  # and some more, of a hundred
    ],
)
def test_a_score_that_cannot_be_fails_at_once(project, tmp_path, task, message):
    run = ("mixer=attn", "task=echo", f"task._target_={__name__}.{task.__name__}", *TINY, f"results_dir={tmp_path}")
    outcome = run_py(*project, *run, "trainer.epochs=3")
    assert outcome.code == 1 and f"error: {message}" in outcome.err
    ((_, record),) = records(tmp_path).items()
    assert record["status"] == "failed" and record["error"].startswith(message)


def test_the_plain_values_of_a_yaml_are_its_baseline(project):
    def label(*overrides):
        task = compose("task=echo", *overrides, config_dir=project[1]).task
        return setting_name(task), build_task(task).seq_len

    assert label() == ("baseline", 16) and label("task.seq_len=8") == ("seq_len=8", 8)
    with Path(project[1], "task", "echo.yaml").open("a") as file:
        file.write("changes: {seq_len: [32, 64]}\n")
    assert label("task.setting=seq_len-32") == ("seq_len-32", 32) == label("task.seq_len=32")
    assert label("task.vocab_size=8", "mixer.num_heads=${nothing}") == ("vocab_size=8", 16)
    with pytest.raises(ValueError, match=r"task\.seq_len=16 is set as well"):
        label("task.setting=seq_len-32", "task.seq_len=16")


def test_a_level_counts_although_the_yaml_has_a_plain_value_too(project):
    with Path(project[1], "task", "echo.yaml").open("a") as file:
        file.write(
            "setting: long\nlevels: {long: {seq_len: 32, test_seq_len: 64}, short: {seq_len: 8, test_seq_len: 8}}\n"
        )

    def lengths(*overrides):
        task = build_task(compose("task=echo", *overrides, config_dir=project[1]).task)
        return task.seq_len, task.test_seq_len

    assert lengths() == (32, 64) and lengths("task.setting=short") == (8, None)
    assert lengths("task.setting=short", "task.seq_len=16") == (16, 8)
