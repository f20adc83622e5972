"""Test rows of another length than the others (`task.test_seq_len`): their data, their scores, their run."""

import math

import numpy as np
import pytest
import test_shared_graphs
import torch
import torch.nn.functional as F
from command_line import TINY, records, run_py
from tiny_training import LENGTH, VOCAB, build_model, fit, splits

import mixerlab.training.fit
from mixerlab.training.capture import GraphCache
from mixerlab.training.metrics import IGNORE_INDEX
from mixerlab.training.optimizers import AdamW

on_a_cpu = test_shared_graphs.on_a_cpu
ICR = ("mixer=attn", "task=icr", *TINY)


def with_longer_test(rows=20, length=3 * LENGTH):
    """Splits whose test rows have another length, with one more unscored position at the start."""
    rng = np.random.default_rng(7)
    inputs = rng.integers(0, VOCAB, (rows, length))
    targets = (inputs + 1) % VOCAB
    targets[:, :3] = IGNORE_INDEX
    return splits() | {"test": (inputs, targets)}


@pytest.mark.parametrize("length", [3 * LENGTH, LENGTH - 4])
def test_scores_are_those_of_the_model_on_the_test_rows(tmp_path, length):
    data = with_longer_test(length=length)
    unmoved = {"optimizer": AdamW, "options": {"weight_decay": 0.0}, "epochs": 1}
    result = fit([(1e-30, 0), (1e-30, 3)], tmp_path, data=data, **unmoved)
    for replica, seed in enumerate((0, 3)):
        torch.manual_seed(seed)
        model = build_model()
        for split in ("val", "test"):
            inputs, targets = map(torch.from_numpy, data[split])
            with torch.no_grad():
                logits = model(inputs).flatten(0, 1)
            # The harness weights batches by their rows; all rows have equally many targets.
            loss = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE_INDEX).item()
            right = (logits.argmax(1) == targets.flatten()).sum() / (targets != IGNORE_INDEX).sum()
            found = result.metrics.query(f"replica == {replica}").iloc[-1]
            assert found[f"{split}_loss"] == pytest.approx(loss, rel=1e-5)
            assert found[f"{split}_token_accuracy"] == pytest.approx(right.item(), abs=1e-6)


def test_training_and_validation_do_not_see_the_length_of_the_test_rows(tmp_path):
    replicas = [(5e-3, 0), (1e-3, 1)]
    one, other = (fit(replicas, tmp_path, data=data) for data in (splits(), with_longer_test()))
    same = [name for name in one.metrics if not name.startswith("test_")]
    assert one.metrics[same].equals(other.metrics[same])
    assert not one.metrics["test_loss"].equals(other.metrics["test_loss"])
    for before, after in zip(one.replicas, other.replicas, strict=True):
        for key in ("clean_epoch", "clean_val_accuracy", "clean_val_loss"):
            assert before[key] == after[key]


@pytest.mark.slow
def test_the_longer_rows_have_a_graph_of_their_own_which_later_runs_share(tmp_path, on_a_cpu):
    alone = fit([(5e-3, 0), (1e-3, 1)], tmp_path, data=with_longer_test())
    assert on_a_cpu == ["train", "score", "score_apart"]
    on_a_cpu.clear()
    fit([(1e-2, 3), (2e-3, 4)], tmp_path, data=with_longer_test(), graph_key="attn")
    shared = fit([(5e-3, 0), (1e-3, 1)], tmp_path, data=with_longer_test(), graph_key="attn")
    assert on_a_cpu == ["train", "score", "score_apart"]
    test_shared_graphs.same(shared, alone)
    fit([(5e-3, 0), (1e-3, 1)], tmp_path, data=with_longer_test(length=2 * LENGTH), graph_key="attn")
    fit([(5e-3, 0), (1e-3, 1)], tmp_path, graph_key="attn")
    assert on_a_cpu == ["train", "score", "score_apart"] * 2 + ["train", "score"]


@pytest.mark.gpu
def test_a_graph_scores_longer_rows_as_launched_steps_do(tmp_path, monkeypatch):
    monkeypatch.setattr(mixerlab.training.fit, "_graphs", GraphCache())
    options = {"data": with_longer_test(), "accelerator": "gpu", "epochs": 3}
    for graph_key in (None, "attn", "attn"):
        graphs, launched = (
            fit([(5e-3, 0), (1e-3, 1)], tmp_path, cuda_graph=on, graph_key=graph_key, **options) for on in (True, False)
        )
        assert graphs.notes == [] and graphs.metrics["test_loss"].notna().all()
        np.testing.assert_allclose(graphs.metrics["test_loss"], launched.metrics["test_loss"], rtol=1e-4)


@pytest.mark.slow
def test_a_run_says_its_test_length_and_is_another_run(tmp_path):
    shorter = run_py(*ICR, f"results_dir={tmp_path}")
    longer = run_py(*ICR, "task.test_seq_len=48", f"results_dir={tmp_path}")
    assert shorter.code == longer.code == 0, longer.err
    found = {record["rows"][0]["hparams"]["task.test_seq_len"]: record["rows"] for record in records(tmp_path).values()}
    assert set(found) == {None, 48}
    label = "vocab_size=8,seq_len=16,num_train_examples=40,test_seq_len=48"
    assert found[48][0]["setting"] == label and label in longer.out
    for before, after in zip(found[None], found[48], strict=True):
        for key in ("train_loss", "val_loss", "val_accuracy", "clean_val_accuracy", "clean_epoch", "state_size"):
            assert before[key] == after[key]
        assert before["test_loss"] != after["test_loss"] and math.isfinite(after["test_loss"])
    again = run_py(*ICR, "task.test_seq_len=16", f"results_dir={tmp_path}")  # the length of the others: the first run
    assert again.code == 0 and "is finished: skipped" in again.err and len(records(tmp_path)) == 2


LIMITED = """
from mixerlab.mixers.attn import Attention

class Limited(Attention):
    def state_size(self, seq_len):
        if seq_len > 40:
            raise ValueError(f"at most 40 tokens, not {seq_len}")
        return super().state_size(seq_len)
"""


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("task=cmp", "task.test_seq_len=64"), "task.test_seq_len=64: an auto-encoder rebuilds"),
        (("task.test_seq_len=33",), "task.test_seq_len=33: of the test rows, task.seq_len=33: must be even"),
        (("task.test_seq_len=0",), "task.test_seq_len=0: must be a whole number of at least 1"),
        (("task.test_seq_len=long",), "task.test_seq_len='long' must be"),
        (("task.test_seq_len=100000000000",), "task.test_seq_len=100000000000 with 16 test rows is more than memory"),
        (("mixer._target_=limited.Limited", "task.test_seq_len=48"), "mixer=attn: at most 40 tokens, not 47"),
    ],
)
def test_a_length_that_cannot_be_is_one_line(tmp_path, monkeypatch, overrides, message):
    (tmp_path / "limited.py").write_text(LIMITED)
    monkeypatch.syspath_prepend(tmp_path)
    outcome = run_py(*ICR, *overrides, f"results_dir={tmp_path / 'results'}")
    assert outcome.code == 1 and message in outcome.err, outcome.err
    assert len(outcome.err.splitlines()) == 1 and not (tmp_path / "results").exists()
