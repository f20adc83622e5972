"""Replicas compute side by side, or one after another if vmap refuses the model, with the results of each alone."""

import importlib
import importlib.util
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from every_mixer import mixer_of
from tiny_training import VOCAB, WIDTH, assert_same_results, build_model, fit, replica_results, splits
from torch import nn

from mixerlab.mixers.base import SequenceMixer
from mixerlab.models.language_model import LanguageModel
from mixerlab.training import execution as of_execution
from mixerlab.training.datamodule import Examples
from mixerlab.training.execution import choose_execution, leaving_no_trace
from mixerlab.training.optimizers import Muon
from mixerlab.training.population import ALL, Execution, Population
from mixerlab.training.schedules import WSD
from mixerlab.training.steps import PopulationSteps
from mixerlab.user_code import with_place

THREE = [(1e-2, 0), (1e-3, 0), (3e-3, 5)]


class Scan(torch.autograd.Function):
    """A running sum as an fla layer would compute it: no rule for vmap, and kernels that want plain tensors."""

    @staticmethod
    def forward(ctx, x, decay):
        ctx.save_for_backward(x, decay)
        assert x.data_ptr() and x.is_contiguous()
        return (x * decay).cumsum(dim=1)

    @staticmethod
    def backward(ctx, gradient):
        x, decay = ctx.saved_tensors
        later = gradient.flip(1).cumsum(dim=1).flip(1)
        return later * decay, (later * x).sum(dim=(0, 1))


class LikeFla(SequenceMixer):
    def __init__(self):
        super().__init__()
        self.proj, self.decay = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.full((WIDTH,), 0.3))

    def forward(self, x):
        return Scan.apply(self.proj(x).contiguous(), self.decay)


class Recurrent(SequenceMixer):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return self.rnn(x)[0]


class Dropped(SequenceMixer):
    def __init__(self, p=0.5):
        super().__init__()
        self.proj, self.p = nn.Linear(WIDTH, WIDTH), p

    def forward(self, x):
        return F.dropout(self.proj(x).cumsum(dim=1), self.p, self.training)


class Normed(SequenceMixer):
    """Statistics over batch and time, and how often they were taken; vmap does both if they are each replica's own."""

    def __init__(self, momentum=0.1):
        super().__init__()
        self.proj, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH, momentum=momentum)

    def forward(self, x):
        return self.norm(self.proj(x).flatten(0, 1)).view_as(x)


class Assigned(SequenceMixer):
    """A mean that is put in the place of the former one."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x):
        y = self.proj(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(dim=(0, 1))
        return y - self.mean


class NormedAndDropped(SequenceMixer):
    """All that a replica has for itself."""

    def __init__(self):
        super().__init__()
        self.parts = nn.Sequential(Normed(), Dropped(0.1), LikeFla())

    def forward(self, x):
        return self.parts(x)


def of(mixer):
    return lambda: LanguageModel(VOCAB, WIDTH, n_layers=2, make_mixer=mixer)


def line_of(text):
    (number,) = (n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.strip() == text)
    return f"{__file__}:{number})"


REFUSED = {
    LikeFla: "return Scan.apply(self.proj(x).contiguous(), self.decay)",
    Recurrent: "return self.rnn(x)[0]",
    Dropped: "return F.dropout(self.proj(x).cumsum(dim=1), self.p, self.training)",
}


@pytest.mark.parametrize("mixer", REFUSED)
def test_what_vmap_refuses_trains_in_a_loop(tmp_path, mixer, caplog):
    together = fit(THREE, tmp_path, build=of(mixer), epochs=2)
    (note,) = together.notes
    assert note.startswith("replicas compute one after another (vmap refuses the model: RuntimeError: ")
    assert f"in {mixer.__name__}.forward ({line_of(REFUSED[mixer])}" in note
    losses = [summary["train_loss"] for summary in together.replicas]
    assert len(set(losses)) == 3
    for number, replica in enumerate(THREE[1:], 1):
        alone = fit([replica], tmp_path, build=of(mixer), epochs=2)
        assert_same_results(replica_results(together, number), replica_results(alone, 0))


@pytest.mark.parametrize(
    ("mixer", "options", "rtol"),
    [
        ("attn", {}, 0),
        ("parallax", {"qkr_norm": False}, 0),
        ("parallax", {}, 1e-5),
        pytest.param("gdn", {}, 0, marks=pytest.mark.slow),
        pytest.param("mesa", {}, 0, marks=pytest.mark.slow),
        pytest.param("mamba", {}, 1e-5, marks=pytest.mark.slow),
    ],
)
def test_both_ways_give_the_same_bits(mixer, options, rtol):
    """At sizes that fill the CPU's vectors: at others, its library sums one product in another order than three.

    It does so at any size for a product of mamba, whose input is transposed, and for the norm of rho, whose gradient
    has another layout: these agree within rounding.
    """
    vocab, length, width = 16, 16, 64
    make_mixer = partial(mixer_of, mixer, width, **options)
    tokens = torch.randint(vocab, (80, length), generator=torch.Generator().manual_seed(0))
    rows = torch.arange(80).view(5, 1, 16).expand(-1, 3, -1)
    losses = {}
    for wanted in ("vmap", "loop"):
        population = Population(lambda: LanguageModel(vocab, width, 2, make_mixer), (0, 1, 5))
        assert choose_execution(population, wanted, tokens[rows[0]], ALL, bf16=False).execution == wanted
        optimizer = Muon(population, [1e-2, 1e-3, 3e-3], WSD(), 5)
        steps = PopulationSteps(population, optimizer, Examples(tokens, tokens.roll(1, dims=1), ALL), bf16=False)
        losses[wanted] = torch.stack([*(steps.train(batch) for batch in rows), steps.score(rows[0])[1]])
    assert len(losses["vmap"].unique()) == losses["vmap"].numel() == 18
    torch.testing.assert_close(losses["loop"], losses["vmap"], rtol=rtol, atol=0)


@pytest.mark.parametrize(
    "mixer", [Normed, *(pytest.param(m, marks=pytest.mark.slow) for m in (Assigned, lambda: Normed(momentum=None)))]
)
def test_buffers_that_training_changes_are_each_replicas_own(tmp_path, mixer):
    together = fit(THREE, tmp_path, build=of(mixer), epochs=2)
    for number, replica in enumerate(THREE):
        alone = fit([replica], tmp_path, build=of(mixer), epochs=2)
        assert alone.notes == together.notes
        assert_same_results(replica_results(together, number), replica_results(alone, 0))


def test_kept_weights_hold_each_replicas_own_buffers(tmp_path):
    replicas = THREE[:2]
    together = fit(replicas, tmp_path, build=of(Normed), keep_weights="official").weights
    for replica, of_both in zip(replicas, together, strict=True):
        alone = fit([replica], tmp_path, build=of(Normed), keep_weights="official").weights[0]["official"]
        assert of_both["official"].keys() == alone.keys()
        for name, value in of_both["official"].items():
            if "running" in name:
                torch.testing.assert_close(value, alone[name], rtol=1e-4, atol=1e-4)
    one, other = (weights["official"]["blocks.0.mixer.norm.running_mean"] for weights in together)
    assert (one - other).abs().max() > 0.01


class OnceChanged(SequenceMixer):
    """A buffer that the first call fills."""

    def __init__(self):
        super().__init__()
        self.proj, self.filled = nn.Linear(WIDTH, WIDTH), False
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x):
        if not self.filled:
            self.scale.fill_(1.0)
            self.filled = True
        return self.proj(x) * self.scale


def test_a_buffer_that_changes_once_is_no_refusal():
    population = Population(of(OnceChanged), (0, 1))
    decision = choose_execution(population, "auto", torch.randint(VOCAB, (2, 3, 7)), ALL, bf16=False)
    assert decision == of_execution.Decision(Execution.VMAP)
    assert set(population.buffers_by_replica) == {f"blocks.{block}.mixer.scale" for block in range(2)}


@pytest.mark.parametrize("mixer", [Normed, NormedAndDropped])
def test_a_process_tries_once_for_cells_of_a_key_and_shape(mixer, monkeypatch):
    monkeypatch.setattr(of_execution, "_known", {})
    tries, trial = [], of_execution._try
    monkeypatch.setattr(of_execution, "_try", lambda *given: tries.append(given[0]) or trial(*given))

    def chosen(rows=3, wanted="auto", scored=ALL, bf16=False, key="it"):
        tries.clear()
        population = Population(of(mixer), (0, 1))
        decision = choose_execution(population, wanted, torch.zeros(2, rows, 7).long(), scored, bf16=bf16, key=key)
        return population, decision, len(tries)

    first, decision, count = chosen()
    later, again, none = chosen()
    assert count and none == 0 and again == decision
    assert later.execution == first.execution and len(later.generators) == len(first.generators)
    assert later.buffers_by_replica.keys() == first.buffers_by_replica.keys() != set()
    for other in ({"rows": 4}, {"wanted": "loop"}, {"scored": slice(3, 5)}, {"bf16": True}, {"key": "other"}):
        assert chosen(**other)[2] and not chosen(**other)[2]
    assert chosen(key=None)[2] and chosen(key=None)[2]


def test_the_current_stream_waits_for_a_trial_that_fails_and_trials_share_a_stream(monkeypatch):
    waits, made = [], []

    class Stream:
        def wait_stream(self, other):
            waits.append((self, other))

    current = Stream()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: made.append(Stream()) or made[-1])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: nullcontext())
    monkeypatch.setattr(of_execution, "_side_stream", cache(of_execution._side_stream.__wrapped__))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="refused"), leaving_no_trace(torch.device("cuda", 0)):
            raise RuntimeError("refused")
    (side,) = made
    assert waits == [(side, current), (current, side)] * 2


@pytest.mark.parametrize("execution", [Execution.VMAP, Execution.LOOP])
def test_statistics_are_those_of_a_model_by_itself(execution):
    tokens = torch.randint(VOCAB, (2, 3, 7))
    population = Population(of(Normed), (0, 1))
    decision = choose_execution(population, execution, tokens, ALL, bf16=False)
    assert decision.execution is population.execution is execution
    names = {f"blocks.{block}.mixer.norm.{name}" for block in range(2) for name in nn.BatchNorm1d(1).state_dict()}
    assert set(population.buffers_by_replica) == {name for name in names if not name.endswith(("weight", "bias"))}
    for _ in range(2):
        population(tokens)
    population.model.eval()
    scores = population(tokens)
    for replica, seed in enumerate((0, 1)):
        torch.manual_seed(seed)
        model = of(Normed)()
        for _ in range(2):
            model(tokens[replica])
        model.eval()
        for name, buffer in population.buffers_by_replica.items():
            torch.testing.assert_close(buffer[replica], model.state_dict()[name])
        torch.testing.assert_close(scores[replica], model(tokens[replica]))


def test_kept_weights_have_the_statistics_of_their_replica(tmp_path):
    given = {"build": of(Normed), "epochs": 2, "keep_weights": "official"}
    together, alone = fit(THREE[:2], tmp_path, **given), fit(THREE[1:2], tmp_path, **given)
    name = "blocks.1.mixer.norm.running_mean"
    first, second = (weights["official"][name] for weights in together.weights)
    torch.testing.assert_close(second, alone.weights[0]["official"][name], rtol=1e-4, atol=1e-6)
    assert (first - second).abs().max() > 1e-3


class Broken(Muon):
    """Muon that fails in the third of four epochs (5 steps each)."""

    steps = 0

    def step(self, closure=None):
        type(self).steps += 1
        if self.steps == 13:
            raise RuntimeError("power failure")
        super().step(closure)


def test_a_loop_continues_with_its_random_numbers_and_buffers(tmp_path):
    """With a replica that leaves: it diverges in the first epoch, and is gone from the third one on."""
    replicas = [(1e30, 3), (1e-2, 0), (1e-3, 5)]
    given = {"build": of(NormedAndDropped), "epochs": 4, "checkpoint_every": 0}
    unbroken = fit(replicas, tmp_path / "unbroken", **given)
    with pytest.raises(RuntimeError, match="power failure"):
        fit(replicas, tmp_path / "broken", optimizer=Broken, **given)
    torch.manual_seed(99)  # the default generator has no part in it
    resumed = fit(replicas, tmp_path / "broken", optimizer=Broken, **given)
    assert Broken.steps == 13 + 10
    assert resumed.replicas == unbroken.replicas and resumed.metrics.equals(unbroken.metrics)
    assert resumed.notes == unbroken.notes and "could not be restored" not in resumed.notes[0]
    alone = fit(replicas[2:], tmp_path / "alone", **given)
    assert_same_results(replica_results(unbroken, 2), replica_results(alone, 0))


def test_a_checkpoint_with_other_buffers_is_not_used():
    one, other = (Population(of(mixer), (0,)) for mixer in (Normed, Dropped))
    one.own(["blocks.0.mixer.norm.running_mean"])
    with pytest.raises(ValueError, match="not those of the checkpoint"):
        other.load_state_dict(one.state_dict(), strict=False)


def test_dropout_is_off_in_scoring(tmp_path):
    """At a rate that changes nothing, scores are those of the model without dropout; training losses are not."""
    given = {"epochs": 2, "batch_size": 70}  # a batch is an epoch
    dropped, plain = (fit([(1e-12, 0)], tmp_path, build=of(lambda p=p: Dropped(p)), **given) for p in (0.5, 0.0))
    assert dropped.metrics["test_loss"].tolist() == pytest.approx(plain.metrics["test_loss"].tolist(), rel=1e-6)
    assert dropped.metrics["test_loss"].nunique() == 1
    first, second = dropped.metrics["train_loss"]
    assert first != pytest.approx(second, rel=1e-4)
    assert plain.metrics["train_loss"][0] == pytest.approx(plain.metrics["train_loss"][1], rel=1e-5)


def test_a_loop_may_be_insisted_on(tmp_path):
    result = fit(THREE, tmp_path, execution="loop", epochs=1)
    assert result.notes == ["replicas compute one after another (trainer.replicas=loop)"]


def test_vmap_may_be_insisted_on(tmp_path):
    with pytest.raises(ValueError, match=r"trainer\.replicas=vmap, but vmap refuses .*Recurrent\.forward.*or loop"):
        fit(THREE, tmp_path, build=of(Recurrent), execution="vmap")


class Wrong(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(WIDTH + 1, WIDTH)

    def forward(self, x):
        return self.proj(x.relu())


@pytest.mark.parametrize("execution", ["auto", "vmap", "loop"])
def test_an_error_of_the_model_is_its_own_and_says_where(tmp_path, execution):
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied") as caught:
        fit([(1e-2, 0)], tmp_path, build=of(Wrong), execution=execution)
    assert with_place(caught.value).endswith(f", in Wrong.forward ({line_of('return self.proj(x.relu())')}")


def test_out_of_memory_is_no_refusal(monkeypatch):
    population = Population(build_model, (0, 1))

    def full(*_):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(population.model, "forward", full)
    with pytest.raises(torch.OutOfMemoryError):
        choose_execution(population, "auto", torch.zeros(2, 1, 3, dtype=torch.int64), ALL, bf16=False)


def test_trying_leaves_no_trace():
    population = Population(of(NormedAndDropped), (0, 1))
    parameters, buffers = population.parameters_by_replica.clone(), [b.clone() for b in population.model.buffers()]
    before = torch.get_rng_state()
    choose_execution(population, "auto", torch.randint(VOCAB, (2, 3, 7), generator=torch.Generator()), ALL, bf16=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(population.parameters_by_replica, parameters) and population.parameters_by_replica.grad is None
    assert all(map(torch.equal, population.model.buffers(), buffers))
    assert all(torch.equal(b[0], b[1]) for b in population.buffers_by_replica.values())
    assert population.buffers_by_replica and population.model.training


on_gpu = {"accelerator": "gpu", "precision": "bf16", "epochs": 20}


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", [*REFUSED, Normed, NormedAndDropped])
def test_a_captured_loop_trains_as_one_launched_one_by_one(tmp_path, mixer):
    """Dropout draws the same numbers in both: a graph goes on from its generators' states."""
    plain, captured = (
        fit(THREE, tmp_path / str(graph), data=splits(train=80), build=of(mixer), cuda_graph=graph, **on_gpu)
        for graph in (False, True)
    )
    assert plain.notes == captured.notes
    losses = ["train_loss", "val_loss"]
    assert plain.metrics[losses].equals(captured.metrics[losses])


@pytest.mark.gpu
def test_replicas_in_a_captured_loop_do_not_share_their_random_numbers(tmp_path):
    together = fit(THREE, tmp_path, build=of(Dropped), **on_gpu)
    alone = fit(THREE[2:], tmp_path, build=of(Dropped), **on_gpu)
    assert_same_results(replica_results(together, 2), replica_results(alone, 0), rtol=2e-2)


@pytest.mark.gpu
def test_runs_that_draw_random_numbers_share_graphs(tmp_path):
    given = {"build": of(Dropped), **on_gpu}
    alone = fit([(2e-3, 5), (1e-2, 6)], tmp_path, **given)
    fit([(5e-3, 0), (1e-3, 1)], tmp_path, graph_key="dropped", **given)
    later = fit([(2e-3, 5), (1e-2, 6)], tmp_path, graph_key="dropped", **given)
    assert later.metrics.equals(alone.metrics)


class Wrapped(SequenceMixer):
    """A layer of fla, which returns a tuple with its output in front."""

    def __init__(self, name, **options):
        super().__init__()
        self.layer = getattr(importlib.import_module("fla.layers"), name)(**options)

    def forward(self, x):
        return self.layer(x)[0]


FLA = {
    "GatedLinearAttention": {"hidden_size": 64, "num_heads": 2},
    "RWKV7Attention": {"hidden_size": 64, "head_dim": 32, "layer_idx": 0, "num_hidden_layers": 2},
}


@pytest.fixture
def first_configuration(monkeypatch):
    """Autotuned kernels take the first of their configurations: RWKV7's have hundreds, which take over four minutes."""
    autotuner = importlib.import_module("triton.runtime.autotuner").Autotuner
    monkeypatch.setattr(autotuner, "prune_configs", lambda self, kwargs: self.configs[:1])


@pytest.mark.gpu
@pytest.mark.skipif(importlib.util.find_spec("fla.layers") is None, reason="needs pip install mixerlab[fla]")
@pytest.mark.parametrize("name", FLA)
@pytest.mark.usefixtures("first_configuration")
def test_a_layer_of_fla_trains(tmp_path, name):
    def build():
        return LanguageModel(VOCAB, 64, n_layers=2, make_mixer=lambda: Wrapped(name, **FLA[name]))

    result = fit(THREE, tmp_path, data=splits(train=80), build=build, **on_gpu | {"epochs": 60})
    assert result.notes[0].startswith("replicas compute one after another")
    losses = result.metrics.query("replica == 0")["train_loss"].tolist()
    assert losses[-1] < 0.7 * losses[0]
