"""Test rows of another length than the others (`task.test_seq_len`): their data, their scores, their run."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from command_line import ATTN, refusal
from tiny_training import LENGTH, VOCAB, build_model, fit, splits

from mixerlab.config.compose import compose
from mixerlab.config.values import checked
from mixerlab.mixers.attn import Attention
from mixerlab.records.identity import run_id
from mixerlab.training.metrics import IGNORE_INDEX

TWO = [(5e-3, 0), (1e-3, 1)]


def with_test_rows_of(length):
    inputs = np.random.default_rng(7).integers(0, VOCAB, (20, length))
    targets = (inputs + 1) % VOCAB
    targets[:, :3] = IGNORE_INDEX
    return splits() | {"test": (inputs, targets)}


@pytest.mark.parametrize("length", [3 * LENGTH, LENGTH - 4])
def test_scores_are_those_of_the_model_on_the_test_rows(tmp_path, length):
    data = with_test_rows_of(length)
    result = fit([(1e-30, 0), (1e-30, 3)], tmp_path, data=data, epochs=1, options={"weight_decay": 0.0})
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


@pytest.mark.gpu
def test_a_graph_scores_longer_rows_as_launched_steps_do(tmp_path):
    options = {"data": with_test_rows_of(3 * LENGTH), "accelerator": "gpu", "epochs": 3}
    graphs, launched = (fit(TWO, tmp_path, cuda_graph=on, **options) for on in (True, False))
    assert graphs.notes == [] and graphs.metrics["test_loss"].notna().all()
    np.testing.assert_allclose(graphs.metrics["test_loss"], launched.metrics["test_loss"], rtol=1e-4)


def test_another_test_length_is_another_run():
    def identity(*overrides):
        return run_id(checked(compose("mixer=attn", "task=icr", *overrides))[1])

    assert identity() == identity("task.test_seq_len=128") != identity("task.test_seq_len=256")


class Limited(Attention):
    def state_size(self, seq_len):
        if seq_len > 40:
            raise ValueError(f"at most 40 tokens, not {seq_len}")
        return super().state_size(seq_len)


def test_a_length_that_the_mixer_refuses_is_refused_before_training(tmp_path):
    results = tmp_path / "results"
    message = refusal(*ATTN, f"mixer._target_={__name__}.Limited", "task.test_seq_len=48", f"results_dir={results}")
    assert "mixer=attn: at most 40 tokens, not 47" in message and not results.exists()
