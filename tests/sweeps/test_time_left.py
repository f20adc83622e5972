"""How far a sweep is said to be."""

import time

from trainers import FakeCell

from mixerlab.records.claims import claim, note_epochs
from mixerlab.sweeps.launch.progress import SweepProgress


def test_the_time_left_counts_the_epochs_of_running_runs(tmp_path):
    cells = [FakeCell(folder=tmp_path / name, cost=100.0) for name in "abc"]
    progress = SweepProgress(dict(zip(cells, ("attn icr", "gdn icr", "mesa icr"), strict=True)))
    try:
        with claim(cells[0].folder), claim(cells[1].folder):
            progress.show(cells[2:], cells[:2])
            assert progress.line()[:2] == ("0 of 3 runs done", 0.0) and "left" not in progress.line()[2]
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
