"""What a run checks before it trains: no output of a language model depends on a later token."""

import copy
import math

import pytest
import torch
from command_line import TINY, records, run_py
from every_mixer import MIXERS, mixer_of
from flawed_mixers import LENGTH, VOCAB, WIDTH, Drops, Flawed, population_of
from torch import nn

import mixerlab
from mixerlab.checks import causality
from mixerlab.checks.causality import (
    CUTS,
    ROWS,
    CausalityCheck,
    MixesRows,
    Undetermined,
    _Look,
    compared,
    cuts,
    find_leak,
    inside,
    rows_on_cpu,
)
from mixerlab.mixers.base import SequenceMixer
from mixerlab.training.execution import choose_execution
from mixerlab.training.population import Population


def exactly(monkeypatch):
    """Every change counts as a leak, also one of the last bit."""
    monkeypatch.setattr(causality, "_ROUNDING", dict.fromkeys(causality._ROUNDING, 0.0))


@pytest.mark.parametrize("bf16", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MIXERS)
def test_our_mixers_change_by_exactly_0(name, bf16, monkeypatch):
    exactly(monkeypatch)
    population = population_of(lambda: mixer_of(name, WIDTH))
    assert find_leak(population, VOCAB, 150, bf16=bf16) is None


@pytest.mark.gpu
@pytest.mark.parametrize("vocabulary", [16, 256])
@pytest.mark.parametrize("length", [127, 1023])
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", MIXERS)
def test_our_mixers_change_by_exactly_0_on_a_gpu(name, bf16, length, vocabulary, monkeypatch):
    exactly(monkeypatch)
    population = population_of(lambda: mixer_of(name, 128), (0, 1, 2), vocabulary, 128).to("cuda")
    assert find_leak(population, vocabulary, length, bf16=bf16) is None


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("flaw", ["mean", "closed gate", "next", "last", "chunk", "norm over time", "not finite"])
def test_a_leak_is_found(flaw, bf16):
    leak = find_leak(population_of(lambda: Flawed(flaw)), VOCAB, LENGTH, bf16=bf16)
    assert leak is not None and leak.since in cuts(LENGTH) and leak.position < leak.since and leak.change > 0
    assert leak.training == (flaw == "norm over time")
    if flaw == "next":
        assert leak.position == leak.since - 1
    if flaw == "chunk":
        assert leak.position // 16 == leak.since // 16


@pytest.mark.parametrize("bf16", [False, True])
def test_rounding_is_no_leak(bf16, monkeypatch):
    population = population_of(lambda: Flawed("by FFT"))
    assert find_leak(population, VOCAB, LENGTH, bf16=bf16) is None
    exactly(monkeypatch)
    assert find_leak(population, VOCAB, LENGTH, bf16=bf16) is not None


@pytest.mark.parametrize("bf16", [False, True])
def test_of_nothing_but_nan_nobody_can_tell(bf16):
    found = find_leak(population_of(lambda: Flawed("nothing but NaN")), VOCAB, LENGTH, bf16=bf16)
    assert isinstance(found, Undetermined)


def test_a_record_of_nothing_but_nan_does_not_say_that_the_mixer_is_causal(tmp_path, monkeypatch):
    code = "import torch\nfrom mixerlab.mixers.attn import Attention\nclass Broken(Attention):\n"
    code += "    def forward(self, x):\n        return super().forward(x) * torch.nan\n"
    (tmp_path / "all_nan.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    broken = ("mixer=attn", "mixer.name=broken", "mixer._target_=all_nan.Broken", "task=icr", *TINY)
    record = mixerlab.run(*broken, f"results_dir={tmp_path}/results")
    assert {row["status"] for row in record.rows} == {"diverged"}
    assert record.provenance["sees_future"] is None and record.provenance["notes"][-1] == str(Undetermined())


def test_the_population_stays_as_it_was():
    population = population_of(Flawed)
    before, random = population.parameters_by_replica.detach().clone(), torch.random.get_rng_state()
    population.model.eval()
    find_leak(population, VOCAB, LENGTH, bf16=False)
    assert torch.equal(population.parameters_by_replica, before) and population.parameters_by_replica.grad is None
    assert torch.equal(torch.random.get_rng_state(), random) and not population.model.training


class Normed(SequenceMixer):
    """A norm over time and batch while it trains, by statistics when it is scored."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return self.norm(x.mT).mT


@pytest.mark.parametrize(("make", "execution", "leaks"), [(Normed, "vmap", True), (Drops, "loop", False)])
def test_statistics_and_random_numbers(make, execution, leaks):
    """Statistics of the batch are a leak in training; random numbers are the same in both sequences, so none."""
    population = population_of(make)
    choose_execution(population, "auto", torch.randint(VOCAB, (2, 2, LENGTH)), slice(None), bf16=False)
    assert population.execution == execution
    before = copy.deepcopy(population.get_extra_state())
    leak = find_leak(population, VOCAB, LENGTH, bf16=False)
    assert leak is None if not leaks else leak.training and "in training mode only" in str(leak)
    torch.testing.assert_close(population.get_extra_state(), before, rtol=0, atol=0)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_any_batch_will_do(batch):
    assert find_leak(population_of(lambda: Flawed("mean")), VOCAB, LENGTH, batch, bf16=False) is not None
    assert find_leak(population_of(Flawed), VOCAB, LENGTH, batch, bf16=False) is None


def test_a_look_keeps_the_logits_of_the_rows_that_it_compares():
    population = population_of(Flawed)
    look = _Look(population, copy.deepcopy(population.state_dict()), (2, ROWS + 3, LENGTH), VOCAB, training=True)
    logits = look._logits(look.tokens, torch.float32, look.noise)
    assert logits.shape == (2, ROWS, LENGTH, VOCAB)
    assert logits.untyped_storage().nbytes() == 4 * logits.numel()


@pytest.mark.parametrize(("replicas", "batch"), [(1, CUTS), (3, 6), (4, 4), (CUTS, 2)])
def test_replicas_try_different_positions(replicas, batch):
    population = population_of(Flawed, range(replicas))
    saved = copy.deepcopy(population.state_dict())
    look = _Look(population, saved, (replicas, batch, LENGTH), VOCAB, training=False)
    tried = look.cut_of_row[:, : look.rows]
    assert set(tried.flatten().tolist()) == set(cuts(LENGTH))
    assert all(len(set(of_replica)) == look.rows for of_replica in tried.tolist())


def test_a_leak_that_only_one_replica_tries_is_found():
    """Without the others, its two rows look inside of chunks only."""
    assert find_leak(population_of(lambda: AcrossEdges(16), [0]), VOCAB, LENGTH, 2, bf16=False) is None
    leak = find_leak(population_of(lambda: AcrossEdges(16), range(8)), VOCAB, LENGTH, 2, bf16=False)
    assert leak is not None and leak.since % 16 == 0 and leak.replica > 0


def test_a_look_with_fewer_rows_says_nothing_of_one_with_more(monkeypatch):
    """On a GPU the batch is that of training, and each of its rows tries one position."""
    monkeypatch.setattr(causality, "_known", {})
    check = CausalityCheck("mine", VOCAB, (LENGTH,), may_see_future=True, key="mine")
    population = population_of(lambda: AcrossEdges(16))
    found = []
    for rows in (1, ROWS):
        monkeypatch.setattr(causality, "rows_on_cpu", lambda length, rows=rows: rows)
        check(population, False, 7)
        found.append(check.found)
    assert found[0] is None and found[1].since % 16 == 0


@pytest.mark.parametrize("replicas", [1, 3, 9])
def test_rows_far_apart_that_influence_each_other_are_noticed(replicas, monkeypatch):
    """Also by a look at few replicas after one at many, whose rows are other ones."""

    class FromAfar(Flawed):
        def forward(self, x):
            return super().forward(x) + self.linear(x).roll(7, dims=0).cumsum(1)

    monkeypatch.setattr(causality, "_known", {})
    for number in (replicas, 1):
        check = CausalityCheck("mine", VOCAB, (LENGTH,), may_see_future=False, key="from afar")
        with pytest.raises(MixesRows):
            check(population_of(FromAfar, range(number)), False, 128)


def test_a_look_at_one_row_of_many_replicas_says_nothing_of_rows(monkeypatch):
    monkeypatch.setattr(causality, "_known", {})
    monkeypatch.setattr(causality, "rows_on_cpu", lambda length: 1)
    check = CausalityCheck("mine", VOCAB, (LENGTH,), may_see_future=False, key="mine")
    check(population_of(lambda: Flawed("over the batch"), range(CUTS)), False, 1)
    assert check.found is None
    monkeypatch.setattr(causality, "rows_on_cpu", lambda length: ROWS)
    with pytest.raises(MixesRows):
        check(population_of(lambda: Flawed("over the batch"), range(1)), False, CUTS)


@pytest.mark.parametrize("replicas", [1, 3, 9])
def test_a_mixer_that_divides_the_batch_by_four_is_checked_with_such_a_batch(replicas):
    class Grouped(Flawed):
        def forward(self, x):
            return super().forward(x.view(-1, 4, *x.shape[1:]).flatten(0, 1))

    check = CausalityCheck("mine", VOCAB, (LENGTH, 700), may_see_future=False, key=f"grouped, {replicas}")
    check(population_of(Grouped, range(replicas)), False, 128)
    assert check.sees_future is False


@pytest.mark.parametrize(("device", "batch"), [("cpu", ROWS), ("cuda", 7)])
def test_on_a_gpu_the_batch_is_that_of_training(device, batch, monkeypatch):
    batches = []
    monkeypatch.setattr(causality, "_known", {})
    monkeypatch.setattr(causality, "find_leak", lambda *arguments, **_: batches.append(arguments[3]))
    check = CausalityCheck("mine", VOCAB, (LENGTH,), may_see_future=False, key="mine")
    population = population_of(Flawed, [0])
    monkeypatch.setattr(Population, "device", torch.device(device))
    check(population, False, 7)
    assert batches == [batch]


def test_a_run_checks_with_no_more_rows_than_it_has(tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(CausalityCheck, "__call__", lambda self, population, bf16, batch: given.append(batch))
    tiny = ("mixer=attn", "task=icr", *TINY, "optimizer.lr=0.01", "trainer.epochs=1", f"results_dir={tmp_path}")
    mixerlab.run(*tiny, "trainer.batch_size=999")
    assert given == [40]  # its training rows


@pytest.mark.parametrize("length", [2, 3, 5, 16, 17, 31, 32, 100, 127, 128, 511, 1023, 1024])
def test_the_positions_are_off_the_edges_of_chunks(length):
    one, other = found = inside(length)
    assert all(1 <= cut < length for cut in found)
    if length >= 16:
        assert one % 2 and one < other
        assert not {0, 1, 15} & {cut % 16 for cut in found}


def test_chunks_counted_from_the_start_do_not_have_edges_at_both_positions():
    assert {math.gcd(*inside(length)) for length in range(4, 2100)} == {1}


@pytest.mark.parametrize("length", [16, 32, 100, 128, 512, 1023, 1024, 2048])
def test_wherever_chunks_begin_one_position_is_inside_of_one(length):
    """Of chunks of equal length; the first may be shorter. Only chunks as long as the prime distance could hide."""
    one, other = inside(length)
    hidden = {
        chunk
        for chunk in range(2, length)
        for first in range(chunk)
        if all((cut - first) % chunk == 0 for cut in (one, other))
    }
    assert hidden == {other - one}


class AcrossEdges(SequenceMixer):
    """A causal sum, and at the last position of each chunk the next token."""

    def __init__(self, chunk):
        super().__init__()
        self.out, self.chunk = nn.Linear(WIDTH, WIDTH, bias=False), chunk

    def forward(self, x):
        at = torch.arange(x.shape[1])
        is_last = (at % self.chunk == self.chunk - 1) & (at < x.shape[1] - 1)
        return self.out(x).cumsum(1) + is_last[:, None] * x.roll(-1, dims=1)

    def state_size(self, seq_len):
        return WIDTH


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 11, 16, 24, 32])
def test_a_leak_at_the_edge_of_chunks_only_is_found(chunk):
    leak = find_leak(population_of(lambda: AcrossEdges(chunk)), VOCAB, LENGTH, bf16=False)
    assert leak is not None and leak.since == leak.position + 1 and leak.since % chunk == 0
    assert find_leak(population_of(lambda: AcrossEdges(LENGTH)), VOCAB, LENGTH, bf16=False) is None


@pytest.mark.parametrize("length", [2, 3, 5, 31, 127, 128, 256, 1023, 2048])
def test_chunks_of_common_lengths_have_an_edge_among_the_positions(length):
    found = cuts(length)
    assert len(found) == len(set(found)) <= CUTS and all(1 <= cut < length for cut in found)
    assert {1, length - 1} <= set(found)
    common = [chunk for chunk in (*range(2, 28 if length >= 64 else 13), 32, 64, 128, 256, 512) if chunk < length]
    assert not [chunk for chunk in common if all(cut % chunk for cut in found)]


@pytest.mark.parametrize(
    ("length", "all_up_to"), [(513, 22), (1023, 18), (1024, 18), (2047, 22), (2048, 24), (8192, 22)]
)
def test_a_cpu_tries_fewer_positions_of_long_rows(length, all_up_to):
    """Chunks of any length up to `all_up_to`, and of a power of two, still have an edge among those of one replica."""
    rows, tried = compared(1, rows_on_cpu(length), length, 16)
    assert rows == tried == 8 and compared(2, rows, length, 16) == (8, CUTS)
    lengths = (*range(2, all_up_to + 1), 32, 64, 128, 256, 512)
    assert not [chunk for chunk in lengths if chunk < length and all(cut % chunk for cut in cuts(length, tried))]


@pytest.mark.parametrize("chunk", [10, 512])
def test_a_leak_at_the_edge_of_chunks_is_found_in_long_rows_on_a_cpu(chunk):
    check = CausalityCheck("mine", VOCAB, (2047,), may_see_future=True, key=chunk)
    check(population_of(lambda: AcrossEdges(chunk)), False, 128)
    assert check.sees_future is True and check.found.since % chunk == 0


@pytest.mark.parametrize("chunk", [2, 4, 7])
def test_a_mean_over_chunks_after_a_first_token_is_found(chunk):
    class Chunked(SequenceMixer):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, x):
            of_chunk = torch.arange(x.shape[1]).add(chunk - 1) // chunk
            same = (of_chunk[:, None] == of_chunk).to(x.dtype)
            return self.out(same / same.sum(-1, keepdim=True) @ x)

        def state_size(self, seq_len):
            return chunk * WIDTH

    assert find_leak(population_of(Chunked), VOCAB, LENGTH, bf16=False) is not None


@pytest.fixture
def mixer(tmp_path, monkeypatch):
    """The overrides of a mixer that sees the mean of all positions."""
    code = "from mixerlab.mixers.attn import Attention\nclass Ahead(Attention):\n"
    code += "    def forward(self, x):\n        return super().forward(x) + x.mean(1, keepdim=True)\n"
    (tmp_path / "sees_ahead.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    results = tmp_path / "results"
    return "mixer=attn", "mixer.name=ahead", "mixer._target_=sees_ahead.Ahead", *TINY, f"results_dir={results}"


def test_a_run_is_refused_in_one_line_unless_it_may(mixer, tmp_path):
    outcome = run_py(*mixer, "task=icr")
    said = outcome.err.splitlines()[-1]
    assert outcome.code == 1 and said.startswith("error: mixer=ahead sees the future: the logits at position ")
    assert "model.may_see_future=true" in said and "Traceback" not in outcome.err
    ((refused, record),) = records(tmp_path / "results").items()
    assert record["status"] == "failed" and record["error"] == said.removeprefix("error: ")

    record = mixerlab.run(*mixer, "task=icr", "model.may_see_future=true")
    assert record.run_id != refused and record.status == "finished"
    assert record.provenance["sees_future"] is True and "change by" in record.provenance["notes"][-1]
    assert record.rows[0]["hparams"]["model.may_see_future"] is True


def test_the_auto_encoder_may_see_everything(mixer):
    record = mixerlab.run(*mixer, "task=cmp")
    assert record.status == "finished" and record.provenance["sees_future"] is None


def test_a_process_looks_once_for_all_cells_of_a_shape(tmp_path, monkeypatch):
    looks = []
    monkeypatch.setattr(causality, "_known", {})
    monkeypatch.setattr(causality, "find_leak", lambda *arguments, **_: looks.append(arguments[1:]))
    attn = ("mixer=attn", "task=icr", *TINY, "optimizer.lr=0.01", "trainer.epochs=1", f"results_dir={tmp_path}")
    for seed, length in ((0, 16), (1, 16), (0, 24)):
        record = mixerlab.run(*attn, f"seed={seed}", f"task.seq_len={length}")
        assert record.provenance["sees_future"] is False
    assert looks == [(8, 15, ROWS), (8, 23, ROWS)]
    mixerlab.run(*attn, "task.seq_len=24", "task.test_seq_len=32")
    assert looks[2:] == [(8, 31, ROWS)]  # the verdict at the length of training says nothing of another


@pytest.mark.parametrize(("flaw", "training"), [("over the batch", False), ("over the batch, in training", True)])
@pytest.mark.parametrize("bf16", [False, True])
def test_rows_that_influence_each_other_are_no_sight_of_the_future(flaw, training, bf16):
    for batch in (2, 5):
        leak = find_leak(population_of(lambda: Flawed(flaw)), VOCAB, LENGTH, batch, bf16=bf16)
        assert leak.between_rows and leak.training == training
        assert str(leak).startswith("rows of a batch influence each other: ") and leak.position >= leak.since
    ahead = find_leak(population_of(lambda: Flawed("over the batch and ahead")), VOCAB, LENGTH, bf16=bf16)
    assert not ahead.between_rows


def checked(flaw, lengths, may_see_future=False):
    check = CausalityCheck("mine", VOCAB, lengths, may_see_future, key=flaw)
    check(population_of(lambda: Flawed(flaw)), False, 2)
    return check


@pytest.mark.parametrize("may_see_future", [False, True])
def test_rows_that_influence_each_other_are_refused_where_they_are_scored(may_see_future):
    with pytest.raises(MixesRows, match=r"^mixer=mine: rows of a batch influence each other: .* by itself$"):
        checked("over the batch", (LENGTH,), may_see_future)
    trains = checked("over the batch, in training", (LENGTH,), may_see_future)
    assert trains.sees_future is False
    assert trains.notes[0].startswith("rows of a batch influence") and "in training mode only" in trains.notes[0]


def test_test_rows_of_another_length_are_looked_at():
    assert checked("in long rows", (LENGTH,)).notes == []
    with pytest.raises(causality.SeesFuture, match=r"sees the future: .*, in test rows of 70 tokens\. model"):
        checked("in long rows", (LENGTH, 70))
    allowed = checked("in long rows", (LENGTH, 70), may_see_future=True)
    assert allowed.sees_future is True and allowed.notes[0].endswith(", in test rows of 70 tokens")
    assert checked("in long rows, in training", (LENGTH, 70)).sees_future is False  # no such row trains


class InLongRows(SequenceMixer):
    def __init__(self, d_model, num_heads, rope_base, qk_norm, bias):
        super().__init__()
        self.mixer = Flawed("in long rows", d_model)

    def forward(self, x):
        return self.mixer(x)

    def state_size(self, seq_len):
        return 1


def test_a_run_is_refused_for_its_test_rows(tmp_path):
    mine = "mixer=attn", "mixer.name=mine", f"mixer._target_={__name__}.InLongRows", "task=icr", "task.test_seq_len=64"
    outcome = run_py(*mine, *TINY, f"results_dir={tmp_path}")
    said = outcome.err.splitlines()[-1]
    assert outcome.code == 1 and said.startswith("error: mixer=mine sees the future: ")
    assert "in test rows of 63 tokens" in said
