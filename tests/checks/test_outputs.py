"""How leaks and state are looked for: with which tokens, positions and rows, how exactly, and that nothing changes."""

import copy

import pytest
import torch
from command_line import TINY, records, run_py
from every_mixer import MIXERS, mixer_of
from flawed_mixers import FLAWS, LENGTH, VOCAB, WIDTH, Flaw, Flawed, across_edges, look_as_a_run, past, population_of
from torch import nn

import mixerlab
from mixerlab.checks import outputs
from mixerlab.checks.outputs import KEEPS_STATE, ROWS, Kind, OutputCheck, cut_positions, find_leak, find_state
from mixerlab.mixers.base import SequenceMixer
from mixerlab.models.stream import ALL
from mixerlab.records.errors import RefusedMixer
from mixerlab.training.execution import choose_execution
from mixerlab.training.population import Population


@pytest.fixture
def exactly(monkeypatch):
    """Every change counts, also one of the last bit."""
    for name in ("_ROUNDING", "_ROUNDING_BF16"):
        monkeypatch.setattr(outputs, name, 0.0)


@pytest.fixture
def with_forward(monkeypatch):
    """A mixer with this `forward(mixer, x, y)`."""

    def make(forward):
        monkeypatch.setitem(FLAWS, "mine", Flaw(forward))
        return lambda: Flawed("mine")

    return make


@pytest.mark.parametrize("bf16", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", MIXERS)
def test_our_mixers_change_by_exactly_0(name, bf16, exactly):
    population = population_of(lambda: mixer_of(name, WIDTH))
    assert find_leak(population, VOCAB, 150, bf16=bf16) is None


@pytest.mark.gpu
@pytest.mark.parametrize("vocabulary", [16, 256])
@pytest.mark.parametrize("length", [127, 1023])
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("name", MIXERS)
def test_our_mixers_change_by_exactly_0_on_a_gpu(name, bf16, length, vocabulary, exactly):
    population = population_of(lambda: mixer_of(name, 128), (0, 1, 2), vocabulary, 128).to("cuda")
    assert find_leak(population, vocabulary, length, bf16=bf16) is None


@pytest.mark.parametrize("bf16", [False, True])
def test_rounding_is_no_leak(bf16, exactly):
    assert find_leak(population_of(lambda: Flawed("by FFT")), VOCAB, LENGTH, bf16=bf16) is not None


@pytest.mark.parametrize("batch", [1, 2, 5, ROWS + 3])
def test_any_batch_will_do(batch):
    found = find_leak(population_of(lambda: Flawed("next")), VOCAB, LENGTH, batch)
    assert found.kind is Kind.FUTURE and f"outputs at position {found.since - 1} change by" in found.message
    assert find_leak(population_of(Flawed), VOCAB, LENGTH, batch) is None


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8])
def test_any_length_will_do(length):
    found = find_leak(population_of(lambda: Flawed("last")), VOCAB, length, 2)
    assert (found is None) == (length == 1)


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 7, 11, 16, 24, 32])
def test_a_leak_across_the_edges_of_chunks_is_found_where_it_is(chunk, with_forward):
    found = find_leak(population_of(with_forward(across_edges(chunk))), VOCAB, LENGTH)
    assert found.since % chunk == 0 and f"outputs at position {found.since - 1} change by" in found.message


@pytest.mark.parametrize("chunk", [2, 4, 7, 16])
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_a_mean_over_chunks_is_found_wherever_they_begin(chunk, offset, with_forward):
    def forward(mixer, x, y):
        number = torch.arange(x.shape[1]).add(chunk - offset) // chunk
        same = (number[:, None] == number).to(x.dtype)
        return mixer.linear(same / same.sum(-1, keepdim=True) @ x)

    assert find_leak(population_of(with_forward(forward), [0]), VOCAB, 127) is not None


@pytest.mark.parametrize("length", [2, 3, 5, 31, 127, 128, 256, 1023, 2048])
def test_chunks_of_common_lengths_have_an_edge_among_the_positions(length):
    cuts = cut_positions(length, ROWS)
    assert len(cuts) == len(set(cuts)) <= ROWS and all(1 <= cut < length for cut in cuts)
    assert {1, length - 1} <= set(cuts)
    common = [chunk for chunk in (*range(2, 26 if length >= 64 else 13), 32, 64, 128, 256, 512) if chunk < length]
    assert not [chunk for chunk in common if all(cut % chunk for cut in cuts)]
    assert any(cut + 1 in cuts for cut in cuts) or length == 2


def test_replicas_try_different_positions(with_forward):
    assert cut_positions(LENGTH, 4 * ROWS) == tuple(range(1, LENGTH))
    make = with_forward(across_edges(37))  # an edge at one position, which one replica would not try
    assert find_leak(population_of(make, range(4)), VOCAB, LENGTH).since == 37


def test_rows_far_apart_that_influence_each_other_are_noticed(with_forward):
    make = with_forward(lambda mixer, x, y: past(y) + y.roll(7, dims=0).cumsum(1))
    for replicas in (1, 3, 9):
        assert find_leak(population_of(make, range(replicas)), VOCAB, LENGTH).kind is Kind.ROWS


def test_the_population_stays_as_it_was():
    for name in ("none", "writes", "dropout in training", "counts steps"):
        population = population_of(lambda: Flawed(name))  # noqa: B023
        choose_execution(population, "auto", torch.randint(VOCAB, (2, 2, LENGTH)), ALL, bf16=False)
        before, random = copy.deepcopy(population.state_dict()), torch.random.get_rng_state()
        find_leak(population, VOCAB, LENGTH)
        find_state(population, VOCAB, LENGTH)
        torch.testing.assert_close(population.state_dict(), before, rtol=0, atol=0)
        assert torch.equal(torch.random.get_rng_state(), random) and population.model.training
        assert population.parameters_by_replica.grad is None


def test_rounding_is_no_state(monkeypatch, with_forward):
    calls = iter(range(99))

    def drifting(share):
        return population_of(with_forward(lambda mixer, x, y: y * (1 + share * next(calls))), [0])

    assert find_state(drifting(0.01), VOCAB, LENGTH) == KEEPS_STATE
    assert find_state(drifting(1e-7), VOCAB, LENGTH) is None


def test_a_look_keeps_the_outputs_of_the_rows_that_it_compares():
    """On a GPU the batch is that of training."""
    population = population_of(Flawed)
    look = outputs._Look(population, copy.deepcopy(population.state_dict()), VOCAB, LENGTH, ROWS + 3)
    kept = look._outputs(look.tokens, bf16=False)
    assert kept.shape == (2, ROWS, LENGTH, VOCAB)
    assert kept.untyped_storage().nbytes() == 4 * kept.numel()


@pytest.fixture
def looks(monkeypatch):
    """The lengths and batches that are looked at; nothing is found."""
    made = []
    monkeypatch.setattr(outputs, "_known", {})
    monkeypatch.setattr(outputs, "find_leak", lambda *args, **options: made.append((args[2], args[3])))
    return made


def test_a_process_looks_once_for_all_cells_of_a_shape(tmp_path, looks):
    attn = ("mixer=attn", "task=icr", *TINY, "optimizer.lr=0.01", "trainer.epochs=1", f"results_dir={tmp_path}")
    for seed, length in ((0, 16), (1, 16), (0, 24)):
        record = mixerlab.run(*attn, f"seed={seed}", f"task.seq_len={length}")
        assert record.provenance["sees_future"] is False
    assert looks == [(15, ROWS), (23, ROWS)]
    mixerlab.run(*attn, "task.seq_len=24", "task.test_seq_len=32")
    assert looks[2:] == [(31, ROWS)]  # what was found at the length of training says nothing of another


@pytest.mark.parametrize(("device", "batches"), [("cpu", [ROWS, ROWS, ROWS]), ("cuda", [64, 32, 64])])
def test_on_a_gpu_the_batch_is_that_of_training_and_fits_in_memory(device, batches, looks, monkeypatch):
    monkeypatch.setattr(Population, "device", torch.device(device))
    for lengths in ((LENGTH, 2 * LENGTH), (LENGTH,)):
        OutputCheck(VOCAB, lengths, True, False, key=lengths)(population_of(Flawed, [0]), False, 64)
    assert [batch for _, batch in looks] == batches


def in_long_rows(mixer, x, y):
    return past(y) + y.mean(dim=1, keepdim=True) if x.shape[1] > LENGTH else past(y)


def test_test_rows_of_another_length_are_looked_at(with_forward):
    make = with_forward(in_long_rows)
    assert look_as_a_run(make).notes == []
    with pytest.raises(RefusedMixer, match=r"sees the future: .*, in test rows of 70 tokens\. model.may_see_future"):
        look_as_a_run(make, lengths=(LENGTH, 70))
    allowed = look_as_a_run(make, lengths=(LENGTH, 70), may_see_future=True)
    assert allowed.sees_future is True and allowed.notes[0].endswith(", in test rows of 70 tokens")
    make = with_forward(lambda mixer, x, y: in_long_rows(mixer, x, y) if mixer.training else past(y))
    assert look_as_a_run(make, lengths=(LENGTH, 70)).sees_future is False  # no such row trains


def test_an_auto_encoder_may_see_everything_and_keeps_no_state():
    def check(name):
        population = population_of(lambda: Flawed(name))
        choose_execution(population, "auto", torch.randint(VOCAB, (2, 2, LENGTH)), ALL, bf16=False)
        OutputCheck(VOCAB, (LENGTH,), False, False, key=name)(population, False, ROWS)

    check("mean")
    with pytest.raises(RefusedMixer, match="it writes h in evaluation mode"):
        check("writes")


class Configured(SequenceMixer):
    """A flawed mixer with the arguments of attention, whose yaml it takes."""

    flaw = "mean"

    def __init__(self, d_model, num_heads, rope_base, qk_norm, bias):
        super().__init__()
        self.inner = Flawed(self.flaw, d_model)

    def forward(self, x):
        return self.inner(x)

    def state_size(self, seq_len):
        return 1


class Remembering(Configured):
    flaw = "remembers"


class Writing(Configured):
    flaw = "writes"


class Stray(Configured):
    flaw = "stray layer"


class NotFinite(Configured):
    flaw = "NaN"


def run_of(mixer, tmp_path, *more):
    mine = "mixer=attn", "mixer.name=mine", f"mixer._target_={__name__}.{mixer.__name__}"
    return *mine, *TINY, f"results_dir={tmp_path}", *(more or ("task=icr",))


@pytest.mark.parametrize(
    ("mixer", "task", "message"),
    [
        (Configured, "icr", "it sees the future: the outputs at position "),
        (Remembering, "icr", KEEPS_STATE),
        (Writing, "icr", "it writes inner.h in evaluation mode"),
        (Writing, "cmp", "it writes inner.h in evaluation mode"),
        (Stray, "icr", "inner.outs[0].weight is no parameter or buffer"),
    ],
)
def test_a_run_is_refused_in_one_line(mixer, task, message, tmp_path):
    outcome = run_py(*run_of(mixer, tmp_path, f"task={task}"))
    said = outcome.err.splitlines()[-1]
    assert outcome.code == 1 and said.startswith(f"error: mixer=mine: {message}") and "Traceback" not in outcome.err
    for record in records(tmp_path).values():
        assert record["status"] == "failed" and record["error"] == said.removeprefix("error: ")


def test_a_run_that_may_see_the_future_says_so(tmp_path):
    record = mixerlab.run(*run_of(Configured, tmp_path), "model.may_see_future=true")
    assert record.status == "finished" and record.provenance["sees_future"] is True
    assert "it sees the future" in record.provenance["notes"][-1]
    assert record.rows[0]["hparams"]["model.may_see_future"] is True
    record = mixerlab.run(*run_of(Configured, tmp_path, "task=cmp"))
    assert record.status == "finished" and record.provenance["sees_future"] is None


def test_a_record_of_nothing_but_nan_does_not_say_that_the_mixer_is_causal(tmp_path):
    record = mixerlab.run(*run_of(NotFinite, tmp_path))
    assert {row["status"] for row in record.rows} == {"diverged"}
    assert record.provenance["sees_future"] is None
    assert record.provenance["notes"][-1] == Kind.UNKNOWN.value


def test_statistics_over_batch_and_time_leak_while_they_are_trained(with_forward):
    class Normed(SequenceMixer):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(WIDTH)

        def forward(self, x):
            return self.norm(x.mT).mT

    with pytest.raises(RefusedMixer, match=r"it sees the future: .*, in training mode only"):
        look_as_a_run(Normed)
