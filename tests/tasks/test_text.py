"""`task=text`: how a corpus is cut, and that a model of it trains as in a plain loop of PyTorch."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from command_line import ran, records
from omegaconf import OmegaConf

import mixerlab
from mixerlab.config.compose import compose
from mixerlab.config.settings import build_task
from mixerlab.config.values import checked
from mixerlab.generate import continue_text, generate
from mixerlab.loading import load
from mixerlab.records.files import read_metrics, run_folder
from mixerlab.records.identity import run_id
from mixerlab.sweeps.figures.curves import run_curves
from mixerlab.sweeps.launch.sweep import Sweep
from mixerlab.tasks.base import SPLITS, TaskRuleError
from mixerlab.tasks.corpus import pieces_of

WORDS = ["the", "mixer", "of", "a", "token", "reads", "its", "state", "and", "writes", "\n"]
CPU = ("trainer.accelerator=cpu", "trainer.progress=false", "model.d_model=16", "task.seq_len=16")


def some_text(words=1200, seed=0):
    return " ".join(np.random.default_rng(seed).choice(WORDS, words))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "corpus" / "a.txt"
    path.parent.mkdir()
    path.write_text(some_text())
    return path


def task_of(path, *overrides):
    return build_task(compose("task=text", f"task.path='{path}'", "task.seq_len=16", *overrides).task)


def test_splits_are_parts_of_the_corpus_one_after_another(file):
    task, content = task_of(file), file.read_bytes()
    rows, start = task.splits(), 0
    for split in SPLITS:
        inputs, targets = rows[split]
        own = inputs.tobytes()
        assert content.find(own, start) == start and targets.tobytes() == content[start + 1 : start + 1 + len(own)]
        start = content.find(b"\n", start + len(own)) + 1  # behind what is too short for a row
        assert start - len(own) <= content.index(own) + 16 + 4096
    inputs, targets = task.generate(5, np.random.default_rng(0), "test")
    task.check(inputs, targets, "test")
    with pytest.raises(TaskRuleError, match="the next token"):
        task.check(inputs, targets + 1, "test")
    longer = task_of(file, "task.test_seq_len=32").splits()
    assert longer["test"][0].shape[1] == 32 and longer["test"][0][0, 16] == rows["test"][1][0, -1]


def test_what_is_in_the_files_counts_and_not_where(file, tmp_path):
    def identity(path, *overrides):
        _, config, _ = checked(compose("task=text", "mixer=attn", f"task.path='{path}'", *CPU, *overrides))
        return run_id(config)

    content = file.read_bytes()
    (parts := tmp_path / "parts").mkdir()
    (parts / "1.md").write_bytes(content[:1000])
    (parts / "2.md").write_bytes(content[1000:])
    before = identity(file)
    assert before == identity(parts / "*.md", "trainer.accumulate=2")
    file.write_bytes(content[:-100] + bytes(reversed(content[-100:])))
    assert identity(file) != before


def test_ids_in_a_file(file, tmp_path):
    ids = np.frombuffer(file.read_bytes(), np.uint8).astype("<u2")
    ids.tofile(tmp_path / "ids.bin")
    np.save(tmp_path / "ids.npy", ids.astype(np.int32))
    of_bin, of_npy = (task_of(tmp_path / f"ids.{kind}", "task.vocab_size=128") for kind in ("bin", "npy"))
    for split in SPLITS:
        assert np.array_equal(of_bin.splits()[split][0], of_npy.splits()[split][0])
    assert np.array_equal(of_bin.splits()["train"][0][:9], task_of(file).splits()["train"][0][:9])
    (tmp_path / "ids.bin").rename(tmp_path / "blob")  # as in a cache of Hugging Face
    (tmp_path / "ids.bin").symlink_to(tmp_path / "blob")
    linked = task_of(tmp_path / "ids.bin", "task.vocab_size=128")
    assert linked.digest == of_bin.digest and np.array_equal(linked.splits()["train"][0], of_bin.splits()["train"][0])
    ids.astype("<u4").tofile(tmp_path / "wide.bin")
    with pytest.raises(ValueError, match=r"wide\.bin: every second id is 0, as if they were uint32"):
        task_of(tmp_path / "wide.bin", "task.vocab_size=128").splits()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("task.path=nowhere/*.txt",), "task.path=nowhere/.*no such file"),
        (("task.seq_len=1000",), "task.seq_len=1000: the val part has .* lower it, or give a longer text"),
        (("task.num_test_examples=90",), "task.num_test_examples=90: the test part has"),
        (("task.vocab_size=100",), "task.vocab_size=100: text has 256 tokens"),
        (("task.tokens=0",), "task.tokens=0"),
        (("task.tokens=inf",), "task.tokens=inf"),
        (("task.tokens=1e12",), "task.tokens=1000000000000.0 makes .* steps"),
        (("task.data_seed=1",), "unknown key task.data_seed"),
        (("trainer.epochs=3",), "trainer.epochs=3 has no effect, because task.tokens=.* add task.tokens=null"),
    ],
)
def test_what_is_refused(file, overrides, message):
    with pytest.raises(ValueError, match=message):
        checked(compose("task=text", f"task.path={file}", *CPU, *overrides))


def test_a_run_knows_where_its_text_lies_wherever_it_was_called(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, config, _ = checked(compose("task=text", "task.path=corpus/*.txt", *CPU))
    monkeypatch.chdir(file.parent)
    assert build_task(OmegaConf.create(config["task"])).files == [str(file)]


def test_a_pattern_has_files_of_one_kind_and_a_name_may_look_like_one(file):
    named = file.rename(file.with_name("a [1].txt"))
    assert task_of(named).files == [str(named)]
    np.arange(99, dtype="<u2").tofile(named.with_name("b.bin"))
    with pytest.raises(ValueError, match=r"task.path=.*\*: has files of text and files of ids"):
        task_of(named.with_name("*"), "task.vocab_size=256")


def test_ids_outside_the_vocabulary_are_refused(file):
    np.save(ids := file.with_suffix(".npy"), np.arange(1000))
    with pytest.raises(ValueError, match="vocab_size=999: the largest id is 999"):
        task_of(ids, "task.vocab_size=999").splits()
    np.save(ids, np.arange(2000) - 100)  # as of labels that are to be ignored
    with pytest.raises(ValueError, match="the ids of the train part begin at -100"):
        task_of(ids, "task.vocab_size=1900").splits()


def test_a_text_without_lines_is_cut_between_characters():
    text = "ä漢" * 70_000
    pieces = list(pieces_of(np.frombuffer(text.encode(), np.uint8)))
    assert len(pieces) == 2 and "".join(pieces) == text


def test_bpe(file, monkeypatch):
    pytest.importorskip("tokenizers")
    task = task_of(file, "task.bpe=270")
    text = file.read_text()
    assert task.vocab_size == 270 and task.decode(task.encode("a mixer reads\n")) == "a mixer reads\n"
    ids = np.concatenate([task.corpus.ids[split] for split in SPLITS])
    assert task.decode(ids.tolist()) == text and len(ids) < 0.7 * len(text)
    few = task_of(file, "task.bpe=270", "task.num_test_examples=2")
    targets = few.splits()["test"][1]
    nats = {"loss": math.log(2) * len(few.decode(targets.ravel().tolist()).encode()) / targets.size}
    assert few.score_from(nats, "test") == pytest.approx(1)  # a bit for each byte of these rows
    monkeypatch.setattr("mixerlab.tasks.corpus._train", None)  # it is kept
    assert task_of(file, "task.bpe=270").digest == task.digest


def test_bpe_needs_utf_8(file):
    """A byte that is replaced would count as three, and make bits per byte too few."""
    pytest.importorskip("tokenizers")
    file.write_bytes(file.read_bytes()[:99] + "é".encode("latin-1") + file.read_bytes())
    with pytest.raises(ValueError, match=r"task.bpe needs UTF-8, which byte 99 "):
        task_of(file, "task.bpe=270").splits()
    assert task_of(file).splits()  # bytes are bytes


def test_bpe_of_more_tokens_than_the_text_has(file):
    pytest.importorskip("tokenizers")
    with pytest.raises(ValueError, match=r"task.bpe=5000: the text has no more than") as caught:
        task_of(file, "task.bpe=5000").splits()
    most = int(str(caught.value).split()[-2])
    task = task_of(file, f"task.bpe={most}")
    assert task.vocab_size == most == task.corpus.largest + 1


def test_epochs_are_passes_without_tokens(file, tmp_path):
    own = ("task=text", f"task.path={file}", "mixer=attn", *CPU, "optimizer.lr=1e-3", f"results_dir={tmp_path}")
    (row,) = mixerlab.run(*own, "task.tokens=null", "trainer.epochs=2", "trainer.batch_size=256").rows
    assert row["epochs"] == 2 and row["steps"] == 2 * math.ceil(task_of(file).num_examples("train") / 256)


@pytest.mark.slow
def test_of_a_sweep_over_tokens_the_longest_run_is_first(file, tmp_path, monkeypatch):
    monkeypatch.setattr(Sweep, "report_on", lambda *of: "")  # which takes most of the time
    own = (*CPU, "task=text", f"task.path={file}", "mixer=attn", "trainer.batch_size=1", f"results_dir={tmp_path}")
    ran("-m", *own, "task.tokens=64,512,128")
    found = sorted(records(tmp_path).values(), key=lambda record: record["provenance"]["started_at"])
    assert [record["rows"][0]["steps"] for record in found] == [32, 8, 4]


@pytest.mark.slow
def test_it_trains_as_a_plain_loop_does(file, tmp_path):
    """Two passes and a part of the third, evaluated at other steps than their ends; gradients in two parts.

    Of the last batch one row is asked for, and it is full; that of a pass has what is left.
    """
    lr, size, seed = 3e-3, 24, 1
    keys = ("optimizer=adamw", f"optimizer.lr={lr}", "optimizer.weight_decay=0", "optimizer.max_grad_norm=null")
    own = (*CPU, "task=text", f"task.path={file}", "mixer=attn", *keys, "schedule=constant", f"seed={seed}")
    given = ("task.tokens=13648", f"trainer.batch_size={size}", "trainer.eval_every=15", "trainer.accumulate=2")
    record = mixerlab.run(*own, *given, "trainer.keep_weights=official", f"results_dir={tmp_path}")
    (row,) = record.rows

    splits = {split: [torch.tensor(x.astype(np.int64)) for x in rows] for split, rows in task_of(file).splits().items()}
    (inputs, targets), model = splits["train"], mixerlab.build_model(*own)
    optimizer = torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0)
    left, rows, order = math.ceil(13648 / 16), [], 0
    assert (left - 2 * len(inputs)) % size == 1
    while left > 0:
        generator = torch.Generator().manual_seed(int(np.random.SeedSequence((seed, order)).generate_state(1)[0]))
        for batch in torch.randperm(len(inputs), generator=generator).split(size)[: math.ceil(left / size)]:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[batch]).flatten(0, 1), targets[batch].flatten()).backward()
            optimizer.step()
            rows.append(len(batch))
        left, order = left - len(inputs), order + 1
    assert order == 3 and row["steps"] == len(rows) and row["epochs"] == 3
    folder = run_folder(tmp_path, record.run_id)
    assert read_metrics(folder)["step"].tolist() == (steps := [15, 30, len(rows)])
    assert read_metrics(folder)["token"].tolist() == [16 * sum(rows[:step]) for step in steps]
    (losses, *_) = run_curves(folder).axes
    assert losses.get_xlabel() == "tokens" and losses.lines[0].get_xdata()[0] == 16 * sum(rows[:15])
    for split in ("val", "test"):
        x, y = splits[split]
        with torch.no_grad():
            loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item()
        assert row[f"{split}_bits_per_byte"] == pytest.approx(loss / math.log(2), rel=1e-4) and loss < 4

    assert row["official_bits_per_byte"] == pytest.approx(min(read_metrics(folder)["test_bits_per_byte"]))
    assert generate(folder)["bits_per_byte"] == pytest.approx(row["official_bits_per_byte"], rel=1e-4)
    text = continue_text(folder, "the mixer", tokens=12)
    assert text.startswith("the mixer") and text == continue_text(folder, "the mixer", tokens=12)
    (likeliest,) = {continue_text(folder, "the", 5, heat, seed) for heat in (0, 1e-50, 1e-9) for seed in range(3)}
    with torch.no_grad():
        for end in range(3, 8):
            logits = load(folder).model(torch.tensor([list(likeliest[:end].encode())]))[0, -1]
            assert chr(logits.argmax()) == likeliest[end]
    for numbers in ((-1, 1.0), (5, -1.0), (5, math.nan)):
        with pytest.raises(ValueError, match="at least 0"):
            continue_text(folder, "the", *numbers)
    assert load(folder).task.digest == record.rows[0]["hparams"]["task.data_sha256"]
    file.write_text(some_text(seed=1))
    with pytest.raises(ValueError, match=f"not those that {record.run_id} was trained on"):
        generate(folder)
    file.unlink()  # as of a run that was copied to another machine
    assert continue_text(folder, "the mixer", tokens=12) == text
    with pytest.raises(ValueError, match=r"task\.path=.*a\.txt: no such file"):
        generate(folder)
