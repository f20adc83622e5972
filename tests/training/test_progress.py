"""The progress bar: one step per trained epoch, and at the end the accuracies of the last epoch."""

import pytest
from tiny_training import fit, splits

from mixerlab.training import callbacks, progress


class Bar:
    def __init__(self, **given):
        self.total, self.count, self.shown, self.closed = given["total"], given["initial"], None, False
        bars.append(self)

    def update(self):
        self.count += 1

    def set_postfix_str(self, text):
        self.shown = text

    def close(self):
        self.closed = True


bars: list[Bar] = []


def test_the_bar_ends_with_the_last_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr(callbacks, "tqdm", Bar)
    monkeypatch.setattr(callbacks, "is_terminal", lambda: True)
    for name, epochs, stops in (("full", 3, False), ("early", 12, True)):
        result = fit([(2e-2, 0)], tmp_path / name, data=splits(), epochs=epochs, stop_when_perfect=stops, progress=True)
        bar, trained = bars[-1], len(result.metrics)
        assert bar.closed and bar.total == epochs and bar.count == trained
        assert (trained < epochs) == stops
        assert bar.shown == f"val accuracy {result.metrics['val_accuracy'].iloc[-1]:.3f}"


@pytest.mark.parametrize(
    ("replicas", "order"),
    [
        ([(2e-2, 4)], None),
        ([(2e-2, 0), (1e-3, 0)], "lr 0.02, 0.001"),
        ([(2e-2, 0), (1e-3, 0), (2e-2, 1)], "seed 0: lr 0.02, 0.001; seed 1: lr 0.02"),
        ([(2e-2, 0), (2e-2, 1), (1e-3, 0)], "seed 0: lr 0.02; seed 1: lr 0.02; seed 0: lr 0.001"),
    ],
)
def test_a_line_before_the_accuracies_says_whose_they_are(tmp_path, capfd, replicas, order):
    fit(replicas, tmp_path, data=splits(), epochs=1, progress=True)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("accuracies are shown")]
    assert lines == ([f"accuracies are shown in this order: {order}"] if order else [])


def test_in_a_pipe_it_is_a_line_now_and_then(tmp_path, monkeypatch, capfd):
    """Without a terminal: here at once for every epoch, and otherwise none in so short a time."""
    for seconds, lines in ((0.0, 3), (60.0, 0)):
        monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", seconds)
        fit([(2e-2, 0)], tmp_path / f"{seconds}", data=splits(), epochs=3, progress=True)
        written = capfd.readouterr().err
        assert "\r" not in written and written.count(" of 3, ") == lines
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    told = progress.Lines()
    for _ in range(3):
        told.tell(lambda: "1 of 2 runs done")
    assert capfd.readouterr().err == "1 of 2 runs done\n"  # nothing new in the second and third
