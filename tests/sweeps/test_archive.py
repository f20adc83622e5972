"""Archives of records: what goes in comes back, nothing else does, and nothing leaves the folder."""

import io
import json
import lzma
import tarfile

import fakes
import pytest

from mixerlab.records import archive
from mixerlab.records.claims import claim
from mixerlab.records.files import CONFIG_FILE, METRICS_FILE, RECORD_FILE, run_folder, write_config, write_record
from mixerlab.sweeps.tables.collect import collect


@pytest.fixture
def results(tmp_path):
    """Two finished runs, one that failed, one that never ended."""
    folder = tmp_path / "results"
    for mixer in ("attn", "gdn"):
        fakes.add_run(folder, [0.2, 0.5, 0.9], mixer=mixer)
    fakes.add_run(folder, [0.1], mixer="mesa", lr=1e-3)
    failed = fakes.record(fakes.config(mixer="mamba"), [0.2, 0.5, 0.9]) | {"status": "failed", "error": "no memory"}
    write_record(run_folder(folder, failed["run_id"]), failed)
    write_config(run_folder(folder, "0123456789ab"), fakes.config(mixer="parallax"))
    (run_folder(folder, failed["run_id"]) / "resume-0.ckpt").write_bytes(b"weights")
    return folder


def written(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".claim"
    }


def test_finished_runs_come_back_whole_and_nothing_else_does(results, tmp_path, capsys):
    file = tmp_path / "table.tar.xz"
    assert archive.main([str(file), "--results-dir", str(results)]) == 0
    assert "3 finished runs packed" in capsys.readouterr().out
    other = tmp_path / "elsewhere"
    assert archive.main([str(file), "--restore", "--results-dir", str(other)]) == 0
    assert "3 runs restored" in capsys.readouterr().out
    back = written(other)
    assert len(back) == 9 and back.items() <= written(results).items()
    assert collect(other)["mixer"].value_counts().to_dict() == {"attn": 3, "gdn": 3, "mesa": 1}


def test_the_name_of_an_archive_says_how_it_is_compressed(results, tmp_path, capsys):
    with pytest.raises(SystemExit):
        archive.main([str(tmp_path / "all.tar.gz"), "--results-dir", str(results)])
    assert capsys.readouterr().err.endswith("all.tar.gz: an archive is compressed by xz, so name it FILE.tar.xz\n")
    assert not (tmp_path / "all.tar.gz").exists()


def test_the_same_records_are_the_same_bytes(results, tmp_path):
    for name in "ab":
        archive.pack(results, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_what_is_finished_or_claimed_stays_as_it_is(results, tmp_path):
    file, other = tmp_path / "table.tar.xz", tmp_path / "elsewhere"
    archive.pack(results, file)
    runs = list(archive._checked(file))
    record = run_folder(other, runs[0]) / RECORD_FILE
    record.parent.mkdir(parents=True)
    ours = (run_folder(results, runs[0]) / RECORD_FILE).read_text().replace('"cpu"', '"ours"')
    record.write_text(ours)
    with claim(run_folder(other, runs[1])):
        assert archive.restore(file, other) == (1, 2)
    assert record.read_text() == ours
    assert not (run_folder(other, runs[1]) / RECORD_FILE).exists()
    assert archive.restore(file, other) == (1, 2)


def test_an_archive_is_not_replaced_where_runs_would_be_lost(results, tmp_path, capsys):
    """As by a slip on the machine where it was to be restored; without finished runs there too."""
    file, other = tmp_path / "a.tar.xz", tmp_path / "elsewhere"
    archive.pack(results, file)
    packed = file.read_bytes()
    other.mkdir()
    for number in (3, 2):
        assert archive.main([str(file), "--results-dir", str(other)]) == 1
        said = capsys.readouterr()
        assert said.out == "" and said.err == (
            f"error: {file} holds {number} finished runs that results_dir={str(other)!r} has not: to unpack it add"
            " --restore; to replace it --force\n"
        )
        assert file.read_bytes() == packed
        if number == 3:
            fakes.add_run(other, [0.2, 0.5, 0.9], mixer="attn")
    assert archive.main([str(file), "--results-dir", str(other), "--force"]) == 0
    assert "1 finished run packed" in capsys.readouterr().out and len(archive._checked(file)) == 1
    with pytest.raises(SystemExit):
        archive.main([str(file), "--restore", "--force"])


def test_an_archive_that_only_grows_is_replaced(results, tmp_path, capsys):
    file = tmp_path / "a.tar.xz"
    file.touch()  # as by mktemp: nothing is lost
    assert archive.main([str(file), "--results-dir", str(results)]) == 0
    fakes.add_run(results, [0.1], mixer="mesa", lr=1e-2)
    assert archive.main([str(file), "--results-dir", str(results)]) == 0
    assert len(archive._checked(file)) == 4


def test_a_file_that_is_no_archive_is_not_replaced(results, tmp_path, capsys):
    file = tmp_path / "notes.tar.xz"
    file.write_text("mine")
    assert archive.main([str(file), "--results-dir", str(results)]) == 1
    said = capsys.readouterr().err
    assert "is no archive of records" in said and said.endswith("; to replace it add --force\n")
    assert file.read_text() == "mine"


def test_its_help_says_what_an_archive_lacks(capsys):
    with pytest.raises(SystemExit):
        archive.main(["--help"])
    assert "no names of sweeps" in capsys.readouterr().out


def test_nothing_finished_is_refused(tmp_path, capsys):
    assert archive.main([str(tmp_path / "a.tar.xz"), "--results-dir", str(tmp_path)]) == 1
    assert "has no finished run: train some" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_its_metrics_is_refused(results, tmp_path):
    next(results.glob("runs/*/metrics.csv")).unlink()
    with pytest.raises(ValueError, match=r"metrics\.csv cannot be read"):
        archive.pack(results, tmp_path / "a.tar.xz")
    assert not list(tmp_path.glob("*.xz*"))


def made(file, *members):
    """An archive with these (name, content) or `TarInfo` members."""
    with lzma.open(file, "wb") as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return file


def link(name, target):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


RUN = "runs/0123456789ab/"


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("../escaped", b"x")], "'../escaped' is no file of a run"),
        ([("/tmp/escaped", b"x")], "is no file of a run"),
        ([("runs/../../escaped/record.json", b"x")], "is no file of a run"),
        ([(RUN + "resume-0.ckpt", b"x")], "is no file of a run"),
        ([(RUN + "record.json\n", b"x")], "is no file of a run"),
        ([link(RUN + "record.json", "/etc/passwd")], "is no plain file"),
        ([(RUN + "config.yaml", b"x"), (RUN + "config.yaml", b"y")], "is there twice"),
        ([(RUN + "config.yaml", b"x")], "has no metrics.csv, record.json"),
        ([(RUN + name, b"{}") for name in archive.FILES], "missing keys"),
    ],
)
def test_an_archive_of_anything_else_is_refused_before_a_file_is_written(tmp_path, members, message):
    file, other = made(tmp_path / "a.tar.xz", *members), tmp_path / "elsewhere"
    with pytest.raises(ValueError, match=message):
        archive.restore(file, other)
    assert not other.exists() and not (tmp_path / "escaped").exists()


def damaged(file, change):
    """The archive with its last run's files changed."""
    runs = archive._checked(file)
    *_, last = runs
    change(runs[last])
    members = [(f"runs/{run}/{name}", content) for run, files in runs.items() for name, content in files.items()]
    return made(file, *members)


def without_digests(files):
    record = json.loads(files[RECORD_FILE])
    del record["sha256"]  # as of earlier versions
    files[RECORD_FILE] = json.dumps(record).encode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda files: files.update({CONFIG_FILE: b"garbage"}), "config.yaml is not its config: it is no mapping"),
        (lambda files: files.update({CONFIG_FILE: b"\xff"}), "config.yaml is not its config: 'utf-8'"),
        (lambda files: files.update({CONFIG_FILE: b"a: 1"}), "config.yaml is not its config"),
        (lambda files: files.update({METRICS_FILE: b"\xff"}), "metrics.csv is not the file that was written"),
    ],
)
def test_a_damaged_run_is_refused_before_a_file_is_written(results, tmp_path, change, message):
    file, other = tmp_path / "a.tar.xz", tmp_path / "elsewhere"
    archive.pack(results, file)
    damaged(file, change)
    with pytest.raises(ValueError, match=message):
        archive.restore(file, other)
    assert not other.exists()


def test_the_record_of_another_config_is_refused(results, tmp_path):
    def another_seed(files):
        without_digests(files)
        record = json.loads(files[RECORD_FILE])
        record["rows"][0]["seed"] = 7
        files[RECORD_FILE] = json.dumps(record).encode()

    file = tmp_path / "a.tar.xz"
    archive.pack(results, file)
    damaged(file, another_seed)
    with pytest.raises(ValueError, match=r"record.json has other rows than its config.yaml describes"):
        archive.restore(file, tmp_path / "elsewhere")


def test_metrics_that_no_digest_vouches_for_come_back_as_they_are(results, tmp_path):
    file, other = tmp_path / "a.tar.xz", tmp_path / "elsewhere"
    archive.pack(results, file)
    damaged(file, lambda files: (without_digests(files), files.update({METRICS_FILE: b"\xff"})))
    assert archive.restore(file, other) == (3, 0)
    assert sorted(path.read_bytes() == b"\xff" for path in other.glob("runs/*/metrics.csv")) == [False, False, True]


def test_what_could_not_be_restored_is_not_packed(results, tmp_path):
    (config, *_) = (path.with_name(CONFIG_FILE) for path in results.glob("runs/*/metrics.csv"))
    config.write_text("garbage")
    with pytest.raises(ValueError, match=r"is no whole run \(.*config.yaml is not its config.*delete it to train"):
        archive.pack(results, tmp_path / "a.tar.xz")


def test_a_record_under_another_name_is_refused(results, tmp_path):
    folder = next(path.parent for path in results.glob("runs/*/metrics.csv"))
    folder.rename(folder.with_name("0" * 12))
    with pytest.raises(ValueError, match=r"000000000000/record.json is not a record \(it is the record of run"):
        archive.pack(results, tmp_path / "a.tar.xz")


def test_a_link_out_of_the_folder_is_not_followed(results, tmp_path):
    file, other, outside = tmp_path / "a.tar.xz", tmp_path / "elsewhere", tmp_path / "outside"
    archive.pack(results, file)
    outside.mkdir()
    (other / "runs").mkdir(parents=True)
    (other / "runs" / list(archive._checked(file))[-1]).symlink_to(outside)
    with pytest.raises(ValueError, match="leads out of results_dir"):
        archive.restore(file, other)
    assert written(other) == {} and list(outside.iterdir()) == []


def test_an_archive_that_was_cut_says_so(results, tmp_path, capsys):
    whole, cut = tmp_path / "a.tar.xz", tmp_path / "b.tar.xz"
    archive.pack(results, whole)
    cut.write_bytes(whole.read_bytes()[:-100])
    assert archive.main([str(cut), "--restore", "--results-dir", str(tmp_path / "c")]) == 1
    assert capsys.readouterr().err == f"error: {cut} is not complete: copy it again\n"
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("content", [b"", b"no archive", lzma.compress(b"no archive")])
def test_what_is_no_archive_is_one_line(tmp_path, content, capsys):
    (tmp_path / "a").write_bytes(content)
    assert archive.main([str(tmp_path / "a"), "--restore", "--results-dir", str(tmp_path / "b")]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert archive.main([str(tmp_path / "none"), "--restore"]) == 1
    assert "cannot be read (No such file or directory): give an archive" in capsys.readouterr().err
