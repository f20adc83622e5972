"""A training that is interrupted goes on from its last checkpoint, and ends as if nothing had happened."""

import io

import pytest
import torch
from tiny_training import Broken, checkpoint_of, fit, splits

from mixerlab.training import callbacks


def test_time_before_an_attempt_counts_once(tmp_path):
    """A training that runs out of memory makes another attempt, and may go on from its own checkpoint."""
    first, again, later = (callbacks.ResumePoint(tmp_path, 60, False, name) for name in ("one", "one", "other"))
    first.resumed_after_s, first.began = 100.0, first.began - 20
    left = first.state_dict()
    again.load_state_dict(left)
    later.load_state_dict(left)
    assert again.resumed_after_s == 100 and later.resumed_after_s == pytest.approx(120, abs=5)


def test_an_interrupted_training_continues_from_its_last_epoch(tmp_path, caplog):
    """Replicas that diverged or are perfect stay frozen; only the interrupted epoch is trained again."""
    replicas = [(2e-2, 0), (1e-3, 0), (1e30, 1)]
    settings = {"data": splits(), "epochs": 8, "stop_when_perfect": True, "checkpoint_every": 0}
    with pytest.raises(RuntimeError, match="power failure"):
        fit(replicas, tmp_path / "broken", optimizer=Broken, **settings)
    with caplog.at_level("INFO"):
        resumed = fit(replicas, tmp_path / "broken", optimizer=Broken, **settings)
    checkpoint = checkpoint_of(replicas, tmp_path / "broken")
    assert f"continuing from {checkpoint}, after epoch 5 of 8" in caplog.messages
    unbroken = fit(replicas, tmp_path / "unbroken", **settings)
    assert resumed.replicas == unbroken.replicas and resumed.metrics.equals(unbroken.metrics)
    assert Broken.steps == 28 + 15
    assert resumed.resumed_after_s > 0 == unbroken.resumed_after_s
    rows_of = unbroken.metrics["replica"].value_counts()
    assert rows_of[2] == 1 and rows_of[0] <= 5 and rows_of[1] == 8  # two were frozen before the failure


def test_an_interrupt_while_a_checkpoint_is_written_is_no_failure(tmp_path, monkeypatch):
    class Interrupted(io.BytesIO):
        writes = 0

        def write(self, data):
            self.writes += 1
            if self.writes == 3:  # PyTorch then closes the file and raises a RuntimeError instead
                raise KeyboardInterrupt
            return super().write(data)

    monkeypatch.setattr(callbacks, "write_checkpoint", lambda path, checkpoint: torch.save(checkpoint, Interrupted()))
    with pytest.raises(KeyboardInterrupt):
        fit([(2e-2, 0)], tmp_path, epochs=2, checkpoint_every=0)
    assert not list(tmp_path.iterdir())
