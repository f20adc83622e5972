"""How leaks and state are looked for: with which tokens, positions and rows, how exactly, and that nothing changes."""

import copy

import pytest
import torch
from command_line import TINY, records, run_py
from every_mixer import MIXERS, mixer_of
from flawed_mixers import BATCH, FLAWS, LENGTH, VOCAB, WIDTH, Flaw, Flawed, across_edges, as_a_run, past, population_of

from mixerlab.checks import outputs
from mixerlab.checks.outputs import OutputCheck, find_leak, find_state
from mixerlab.models.stream import ALL
from mixerlab.records.errors import RefusedMixer
from mixerlab.training.execution import choose_execution


@pytest.fixture
def exactly(monkeypatch):
    """Every change counts, also one of the last bit."""
    for name in ("_ROUNDING", "_ROUNDING_BF16"):
        monkeypatch.setattr(outputs, name, 0.0)


@pytest.fixture
def with_forward(monkeypatch):
    def make(forward):
        monkeypatch.setitem(FLAWS, "mine", Flaw(forward))
        return lambda: Flawed("mine")

    return make


@pytest.mark.sampled(7)
@pytest.mark.parametrize("bf16", [False, True])
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


@pytest.mark.parametrize("chunk", [1, 2, 7, 16, 32])
def test_a_leak_across_the_edges_of_chunks_is_found_where_it_is(chunk, with_forward):
    found = find_leak(population_of(with_forward(across_edges(chunk))), VOCAB, LENGTH)
    assert found.since % chunk == 0 and f"outputs at position {found.since - 1} change by" in found.message


def test_the_population_stays_as_it_was():
    for name in ("none", "writes", "dropout in training"):
        population = population_of(lambda: Flawed(name))  # noqa: B023
        choose_execution(population, "auto", torch.randint(VOCAB, (2, 2, LENGTH)), ALL, bf16=False)
        before, random = copy.deepcopy(population.state_dict()), torch.random.get_rng_state()
        find_leak(population, VOCAB, LENGTH)
        find_state(population, VOCAB, LENGTH)
        torch.testing.assert_close(population.state_dict(), before, rtol=0, atol=0)
        assert torch.equal(torch.random.get_rng_state(), random) and population.model.training
        assert population.parameters_by_replica.grad is None


def in_long_rows(mixer, x, y):
    return past(y) + y.mean(dim=1, keepdim=True) if x.shape[1] > LENGTH else past(y)


def test_test_rows_of_another_length_are_looked_at(with_forward):
    make = with_forward(in_long_rows)
    assert as_a_run(make).notes == []
    with pytest.raises(RefusedMixer, match=r"sees the future: .*, in test rows of 70 tokens\. model.may_see_future"):
        as_a_run(make, lengths=(LENGTH, 70))
    allowed = as_a_run(make, lengths=(LENGTH, 70), may_see_future=True)
    assert allowed.sees_future is True and allowed.notes[0].endswith(", in test rows of 70 tokens")
    make = with_forward(lambda mixer, x, y: in_long_rows(mixer, x, y) if mixer.training else past(y))
    assert as_a_run(make, lengths=(LENGTH, 70)).sees_future is False  # no such row trains


def test_an_auto_encoder_may_see_everything_and_keeps_no_state():
    def check(name, batch=BATCH):
        population = population_of(lambda: Flawed(name))
        choose_execution(population, "auto", torch.randint(VOCAB, (2, 2, LENGTH)), ALL, bf16=False)
        OutputCheck(VOCAB, (LENGTH,), False, False, key=name)(population, False, batch)

    for batch in (1, 2, BATCH):
        check("mean", batch)
    with pytest.raises(RefusedMixer, match="it writes h in evaluation mode"):
        check("writes")
    for name, batch in (("over the batch", 2), ("over a large batch", BATCH), ("pairs of rows", BATCH)):
        with pytest.raises(RefusedMixer, match=r"rows of a batch influence each other: .* when others change"):
            check(name, batch)


@pytest.fixture
def run_of(own, tmp_path):
    def command(flaw, *more):
        options = own("mixer/mine", f"name: mine\n_target_: flawed_mixers.Flawed\nflaw: {flaw}\n")
        return *options, "mixer=mine", *TINY, f"results_dir={tmp_path}", *(more or ("task=icr",))

    return command


@pytest.mark.parametrize(
    ("flaw", "task", "message"),
    [
        ("mean", "icr", "it sees the future: the outputs at position "),
        ("writes", "cmp", "it writes h in evaluation mode"),
    ],
)
def test_a_run_is_refused_in_one_line(flaw, task, message, run_of, tmp_path):
    outcome = run_py(*run_of(flaw, f"task={task}"))
    said = outcome.err.splitlines()[-1]
    assert outcome.code == 1 and said.startswith(f"error: mixer=mine: {message}") and "Traceback" not in outcome.err
    for record in records(tmp_path).values():
        assert record["status"] == "failed" and record["error"] == said.removeprefix("error: ")


def test_a_run_that_may_see_the_future_says_so(run_of, tmp_path):
    for task, sees_future in (("icr", True), ("cmp", None)):
        assert run_py(*run_of("mean", "model.may_see_future=true", f"task={task}")).code == 0
        (record,) = [record for record in records(tmp_path).values() if record["rows"][0]["task"] == task]
        assert record["provenance"]["sees_future"] is sees_future
        assert ("it sees the future" in str(record["provenance"]["notes"])) == bool(sees_future)
        assert record["rows"][0]["hparams"]["model.may_see_future"] is True
