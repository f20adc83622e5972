"""The progress bar: one step per trained epoch, and at the end the accuracies of the last epoch."""

from unittest import mock

import pytest
from tiny_training import fit, splits

from mixerlab.records import text
from mixerlab.training import callbacks
from mixerlab.training.optimizers import Muon


def test_the_bar_ends_with_the_last_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr(callbacks, "is_terminal", lambda: True)
    for name, epochs, stops in (("full", 3, False), ("early", 12, True)):
        monkeypatch.setattr(callbacks, "tqdm", tqdm := mock.Mock())
        result = fit([(2e-2, 0)], tmp_path / name, data=splits(), epochs=epochs, stop_when_perfect=stops, progress=True)
        trained, options, bar = len(result.metrics), tqdm.call_args.kwargs, tqdm.return_value
        assert (trained < epochs) == stops
        assert (options["total"], options["initial"] + bar.update.call_count) == (epochs, trained)
        bar.set_postfix_str.assert_called_with(f"val accuracy {result.metrics['val_accuracy'].iloc[-1]:.3f}")
        bar.close.assert_called()


class Clock(Muon):
    now = 0.0

    def step(self, closure=None):
        type(self).now += 1
        super().step(closure)


@pytest.mark.parametrize(
    ("length", "left"),
    [
        ({"epochs": 2}, 60 + 2 * 20 / 3),
        ({"trained_rows": 40}, 10 + 20 / 3),
        ({"epochs": 1, "eval_every": 99}, 25 + 20 / 3),
    ],
)
def test_the_time_left_is_that_of_the_steps_to_come_and_of_scoring(tmp_path, monkeypatch, caplog, length, left):
    """After 10 of 35 steps of a pass. A training may be shorter than a pass, or than `eval_every`."""
    monkeypatch.setattr(callbacks, "SECONDS_UNTIL_COST", 0.0)
    monkeypatch.setattr(callbacks, "duration", duration := mock.Mock())
    monkeypatch.setattr(callbacks.time, "monotonic", lambda: Clock.now)
    with caplog.at_level("INFO"):
        fit([(1e-3, 0)], tmp_path, optimizer=Clock, batch_size=2, **length)
    ((told,),) = [call.args for call in duration.call_args_list]
    assert told == pytest.approx(left) and " left on 1 core, " in caplog.text
    assert ("trainer.eval_every=STEPS" in caplog.text) == (length != {"epochs": 2})


def test_in_a_pipe_it_is_a_line_now_and_then_that_says_whose_accuracies_they_are(tmp_path, monkeypatch, capfd):
    """Here at once for every epoch, and otherwise none in so short a time."""
    for seconds, lines in ((0.0, 3), (60.0, 0)):
        monkeypatch.setattr(text, "SECONDS_BETWEEN_LINES", seconds)
        fit([(2e-2, 0), (1e-3, 1)], tmp_path / f"{seconds}", data=splits(), epochs=3, progress=True)
        written = capfd.readouterr().err
        assert "\r" not in written and written.count(" of 3, ") == lines
        assert "lr 0.02 seed 0, lr 0.001 seed 1\n" in written
