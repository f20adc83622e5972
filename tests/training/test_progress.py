"""The progress bar: the steps that are trained, the time left, and the accuracies of the last epoch."""

from unittest import mock

import pytest
from tiny_training import fit, splits

from mixerlab.records import text
from mixerlab.training import callbacks


def test_the_bar_ends_with_the_last_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr(callbacks, "is_terminal", lambda: True)
    for name, epochs, stops in (("full", 3, False), ("early", 12, True)):
        monkeypatch.setattr(callbacks, "tqdm", tqdm := mock.Mock())
        bar = tqdm.return_value
        bar.n, bar.update.side_effect = 0, lambda steps, bar=bar: setattr(bar, "n", bar.n + steps)
        result = fit([(2e-2, 0)], tmp_path / name, data=splits(), epochs=epochs, stop_when_perfect=stops, progress=True)
        options = tqdm.call_args.kwargs
        assert (len(result.metrics) < epochs) == stops
        assert (options["total"], options["initial"]) == (5 * epochs, 0)
        assert bar.n == result.replicas[0]["steps"] == 5 * len(result.metrics)
        bar.set_postfix_str.assert_called_with(f"val accuracy {result.metrics['val_accuracy'].iloc[-1]:.3f}")
        bar.close.assert_called()


@pytest.mark.parametrize("length", [{"epochs": 2}, {"trained_rows": 40}, {"epochs": 1, "eval_every": 99}])
def test_a_training_with_one_evaluation_says_how_to_have_more(tmp_path, caplog, length):
    with caplog.at_level("INFO"):
        fit([(1e-3, 0)], tmp_path, **length)
    assert ("trainer.eval_every=STEPS" in caplog.text) == (length != {"epochs": 2})


def test_in_a_pipe_it_is_a_line_now_and_then_that_says_whose_accuracies_they_are(tmp_path, monkeypatch, capfd):
    """Here at once for every group of steps, and otherwise none in so short a time."""
    for seconds, lines in ((0.0, 3), (60.0, 0)):
        monkeypatch.setattr(text, "SECONDS_BETWEEN_LINES", seconds)
        fit([(2e-2, 0), (1e-3, 1)], tmp_path / f"{seconds}", data=splits(), epochs=3, progress=True)
        written = capfd.readouterr().err
        assert "\r" not in written and written.count(" of 15, ") == lines
        assert ("step 15 of 15, 0 s left, val accuracy " in written) == (lines > 0)
        assert "lr 0.02 seed 0, lr 0.001 seed 1\n" in written
