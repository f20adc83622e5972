"""What a sweep makes of an engine that fails as a whole: what the folders of its cells tell."""

import fakes
import pytest

from mixerlab.records.files import record_bytes, run_folder, write_config, write_record
from mixerlab.records.identity import run_id
from mixerlab.records.schema import failed_record
from mixerlab.sweeps.launch.cells import Cell
from mixerlab.sweeps.launch.slurm import SlurmFailed
from mixerlab.sweeps.launch.sweep import _train

CONFIGS = [fakes.config(setting=setting) for setting in ("baseline", "seq_len-256", "seq_len-512", "seq_len-1024")]


@pytest.fixture
def cells(tmp_path):
    folders = [run_folder(tmp_path, run_id(config)) for config in CONFIGS]
    for folder, config in zip(folders, CONFIGS, strict=True):
        write_config(folder, config)
        write_record(folder, failed_record(config, "of an earlier sweep", {}))
    return [
        Cell([f"task.seq_len={folder.name}"], str(tmp_path), folder, {}, ("attn", "icr", ""), {}, (), 0)
        for folder in folders
    ]


def outcome(cells, *records):
    """What the sweep makes of a launch in which these (cell, record) were written before it failed."""

    class Launcher:
        def launch(self, job_overrides, initial_job_idx):
            for cell, record in records:
                write_record(cell.folder, record, replaces=record_bytes(cell.folder))
            raise ConnectionError("the cluster\nis gone")

    return _train(Launcher(), cells)


def test_what_ended_before_counts_and_the_rest_does_not(cells):
    failed, finished, *_ = cells
    records = [
        (failed, failed_record(CONFIGS[0], "ValueError: no", {})),
        (finished, fakes.record(CONFIGS[1], [0.5, 0.6, 0.7])),
    ]
    ended, reason = outcome(cells, *records)
    assert ended == {failed: "ValueError: no", finished: None}
    assert reason == "ConnectionError: the cluster is gone"


def test_jobs_that_run_on_are_waited_for(cells):
    class Launcher:
        def launch(self, job_overrides, initial_job_idx):
            raise RuntimeError("a job was cancelled")

    class Jobs:
        def wait(self):
            write_record(
                cells[1].folder,
                fakes.record(CONFIGS[1], [0.5, 0.6, 0.7]),
                replaces=record_bytes(cells[1].folder),
            )
            raise SlurmFailed("`squeue` failed")

    ended, reason = _train(Launcher(), cells, Jobs())
    assert ended == {cells[1]: None}
    assert reason == "RuntimeError: a job was cancelled; `squeue` failed"
