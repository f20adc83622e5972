"""The queue of a sweep: what it makes of claims, of cells that end, and of those that an executor loses."""

import time
from contextlib import ExitStack

import pytest
from omegaconf import OmegaConf
from trainers import FakeCell

from mixerlab.records.claims import claim, note_epochs
from mixerlab.sweeps.launch import sweep as sweep_module
from mixerlab.sweeps.launch.cells import Cell, names_of
from mixerlab.sweeps.launch.executors import Ended
from mixerlab.sweeps.launch.progress import SweepProgress
from mixerlab.sweeps.launch.sweep import Sweep


class Scripted:
    """An executor that ends cells in turn, as it is told: by name, a list of (run_id, error, is_lost)."""

    def __init__(self, slots, **script):
        self.slots, self.script = slots, script
        self.cells, self.order, self.most, self.is_stopped = [], [], 0, False

    def submit(self, cell):
        self.cells.append(cell)
        self.order.append(cell.run_id)
        self.most = max(self.most, len(self.cells))

    def poll(self, seconds):
        if not self.cells:
            return []
        cell = self.cells.pop(0)
        script = self.script.get(cell.run_id)
        return [Ended(cell, *(script.pop(0) if script else (cell.run_id,)))]

    def stop(self):
        self.is_stopped = True


@pytest.fixture
def make(tmp_path, monkeypatch):
    """A sweep with this executor, and its cells `a` to `d`."""
    monkeypatch.setattr(sweep_module, "POLL_SECONDS", 0.01)

    def make(executor):
        folders = [tmp_path / "runs" / name for name in "abcd"]
        cells = [FakeCell(folder=folder, run_id=folder.name) for folder in folders]
        return Sweep(None, None, executor), cells

    return make


def test_cells_are_submitted_in_order_and_no_more_than_there_are_slots(make):
    executor = Scripted(2)
    sweep, cells = make(executor)
    assert sweep.train(cells) == {} and executor.order == list("abcd") and executor.most == 2
    sweep.close()
    assert executor.is_stopped


def test_a_run_is_named_by_a_key_whose_end_is_like_that_of_its_setting(tmp_path):
    cfg = OmegaConf.create({"mixer": {"name": "attn"}, "task": {"name": "icr"}})
    config = {"task": {"setting": "map_seed=1"}}
    cells = [Cell(["task.map_seed=1", f"seed={seed}"], cfg, config, {}, tmp_path, 1.0) for seed in (0, 1)]
    assert list(names_of(cells).values()) == [f"attn icr map_seed=1, seed={seed}" for seed in (0, 1)]


def test_what_another_process_was_faster_to_train_is_tried_again(make):
    executor = Scripted(1, a=[(None,)])
    sweep, cells = make(executor)
    assert sweep.train(cells) == {} and executor.order == list("abcda")


def test_errors_are_told_and_what_is_lost_is_tried_once_more(make):
    lost = (None, "the node died", True)
    executor = Scripted(4, a=[lost], b=[lost, lost], c=[(None, "ValueError: no")], d=[("another",)])
    sweep, cells = make(executor)
    failed = {cell.run_id: error for cell, error in sweep.train(cells).items()}
    assert sorted(executor.order) == list("aabbcd") and set(failed) == set("bcd")
    assert "lost it twice: the node died" in failed["b"] and failed["c"] == "ValueError: no"
    assert "another" in failed["d"]


def test_runs_of_other_processes_are_waited_for(make, capsys):
    class LetsGo(Scripted):
        """The other processes end once this one has trained what is free."""

        def poll(self, seconds):
            if not self.cells:
                assert self.order == ["b", "d"]
                claims.close()
            return super().poll(seconds)

    executor = LetsGo(2)
    sweep, cells = make(executor)
    with ExitStack() as claims:
        for number in (0, 2):
            assert claims.enter_context(claim(cells[number].folder))
        assert sweep.train(cells) == {} and executor.order == list("bdac")
    assert capsys.readouterr().err.count("waiting for 2 runs") == 1


def test_the_time_left_counts_the_epochs_of_running_runs(tmp_path):
    cells = [FakeCell(folder=tmp_path / name, cost=100.0) for name in "abc"]
    progress = SweepProgress(dict(zip(cells, ("attn icr", "gdn icr", "mesa icr"), strict=True)))
    try:
        with claim(cells[0].folder), claim(cells[1].folder):
            progress.show(cells[2:], cells[:2])
            assert progress.line()[:2] == ("0 of 3 runs done", 0.0) and "left" not in progress.line()[2]
            note_epochs(cells[0].folder, 500, 600)  # and then anew, in halves
            for epoch in (1, 15):
                note_epochs(cells[0].folder, epoch, 60)
                note_epochs(cells[1].folder, 2 * epoch, 60)
            progress.began_at = time.monotonic() - 60
            done, share, times = progress.line()
            assert (done, share) == ("0 of 3 runs done", 0.25)
            assert times == "01:00 elapsed, 03:00 left; now gdn icr 50%; attn icr 25%"
        with claim(cells[0].folder):  # anew: the note was of before
            assert progress.line()[1] < share
    finally:
        progress.close()
