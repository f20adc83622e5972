"""Archives of records: what goes in comes back, nothing else does, and nothing leaves the folder."""

import io
import lzma
import tarfile

import fakes
import pytest

from mixerlab.records import archive
from mixerlab.records.claims import claim
from mixerlab.records.files import METRICS_FILE, RECORD_FILE, run_folder, write_config, write_record
from mixerlab.records.schema import failed_record


@pytest.fixture
def results(tmp_path):
    """Two finished runs, one that failed, one that never ended."""
    folder = tmp_path / "results"
    for mixer in ("attn", "gdn"):
        fakes.add_run(folder, [0.2, 0.5, 0.9], mixer=mixer)
    failed = failed_record(fakes.config(mixer="mamba"), "no memory", {})
    write_record(run_folder(folder, failed.run_id), failed)
    write_config(run_folder(folder, "0123456789ab"), fakes.config(mixer="parallax"))
    (run_folder(folder, failed.run_id) / "resume-0.ckpt").write_bytes(b"weights")
    return folder


@pytest.fixture
def packed(results, tmp_path):
    file = tmp_path / "table.tar.xz"
    assert archive.main([str(file), "--results-dir", str(results)]) == 0
    return file


def unpacked(packed, folder):
    """The runs of an archive, in `folder` by now."""
    archive.unpack(packed, folder)
    return sorted(path.name for path in (folder / "runs").iterdir())


def written(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".claim"
    }


def test_finished_runs_come_back_whole_and_nothing_else_does(results, packed, tmp_path, capsys):
    assert archive.main([str(packed), "--restore", "--results-dir", str(tmp_path / "elsewhere")]) == 0
    assert "2 runs restored" in capsys.readouterr().out
    back = written(tmp_path / "elsewhere")
    assert len(back) == 6 and back.items() <= written(results).items()


def test_what_is_finished_or_claimed_stays_as_it_is(results, packed, tmp_path):
    other, runs = tmp_path / "elsewhere", unpacked(packed, tmp_path)
    record = run_folder(other, runs[0]) / RECORD_FILE
    record.parent.mkdir(parents=True)
    ours = (run_folder(results, runs[0]) / RECORD_FILE).read_text().replace('"cpu"', '"ours"')
    record.write_text(ours)
    with claim(run_folder(other, runs[1])):
        assert archive.restore(packed, other) == (0, 2)
    assert record.read_text() == ours and not (run_folder(other, runs[1]) / RECORD_FILE).exists()
    assert archive.restore(packed, other) == (1, 1)


def test_an_archive_is_only_replaced_by_force(results, packed, capsys):
    """As by a slip on the machine where it was to be restored."""
    again, content = [str(packed), "--results-dir", str(results)], packed.read_bytes()
    packed.write_text("mine")
    assert archive.main(again) == 1 and packed.read_text() == "mine"
    assert "to unpack it add --restore; to replace it --force" in capsys.readouterr().err
    assert archive.main([*again, "--force"]) == 0 and packed.read_bytes() == content


def made(file, *members):
    """An archive with these (name, content) members."""
    with lzma.open(file, "wb") as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file


def test_an_archive_of_anything_else_is_refused_before_a_file_is_written(tmp_path):
    file, other = made(tmp_path / "a.tar.xz", ("../escaped", b"x")), tmp_path / "elsewhere"
    with pytest.raises(ValueError, match=r"'../escaped' is no file of a run"):
        archive.restore(file, other)
    assert not other.exists() and not (tmp_path / "escaped").exists()


def test_a_damaged_run_is_refused_before_a_file_is_written(packed, tmp_path):
    *_, last = runs = unpacked(packed, tmp_path)
    (run_folder(tmp_path, last) / METRICS_FILE).write_bytes(b"\xff")
    files = (f"runs/{run}/{name}" for run in runs for name in archive.FILES)
    made(packed, *((name, (tmp_path / name).read_bytes()) for name in files))
    with pytest.raises(ValueError, match=rf"^{packed}/runs/{last}/metrics.csv cannot be read"):
        archive.restore(packed, tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()
