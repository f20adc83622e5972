"""The weights that a run keeps are those of the epochs that its results name, whatever happens on the way."""

import math
import random
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from tiny_training import VOCAB, WIDTH, Broken, build_model, fit, splits
from torch import nn

from mixerlab.models.language_model import LanguageModel
from mixerlab.training.lit_module import PopulationTraining
from mixerlab.training.metrics import CHOSEN_ON, IGNORE_INDEX, Scores, summarise
from mixerlab.training.optimizers import Muon
from mixerlab.training.population import Population
from mixerlab.training.schedules import Constant
from mixerlab.training.weights import KeptWeights, model_state, pack, put_in, unpack

# Each leaves the population at another epoch: the first diverges, the last becomes perfect.
WILD, SLOW, FAST = (1e30, 1), (1e-5, 0), (2e-2, 0)
STOPPING = {"data": splits(), "epochs": 7, "stop_when_perfect": True}


def same(state, other):
    return state.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in state.items())


def same_weights(one, other):
    assert len(one.weights) == len(other.weights)
    for of_replica, of_other in zip(one.weights, other.weights, strict=True):
        assert of_replica.keys() == of_other.keys()
        assert all(same(state, of_other[selection]) for selection, state in of_replica.items())


PERPLEXITIES = (1.0, 1.0, 1.25, 1.5, 1e38, math.inf, math.nan)  # few, so that many tie


def drawn_history(draw, replicas, epochs):
    """A history as `PopulationTraining` makes them, of random perplexities, divergences and stops."""
    history, active, diverged = [], [True] * replicas, [False] * replicas
    finite = draw.choice((PERPLEXITIES[:4], PERPLEXITIES, PERPLEXITIES[4:]))
    for epoch in range(epochs):
        row = {f"{split}_perplexity": [draw.choice(finite) for _ in range(replicas)] for split in ("val", "test")}
        for number in range(replicas):
            stops = active[number] and draw.random() < 0.15
            diverged[number] |= stops and draw.random() < 0.5
            active[number] = active[number] and not stops
        if epoch == epochs - 1 and draw.random() < 0.3:
            row["test_perplexity"] = [math.nan] * replicas  # the last step has diverged
        for split in ("val", "test"):
            row[f"{split}_loss"] = [math.log(value) for value in row[f"{split}_perplexity"]]
            row |= {f"{split}_{name}": [0.5] * replicas for name in ("accuracy", "token_accuracy")}
        row |= {"steps": [epoch + 1] * replicas, "train_loss": [1.0] * replicas, "learning_rate": [1.0] * replicas}
        history.append({"epoch": epoch, "active": list(active), "diverged": list(diverged), **row})
        if not any(active):
            break
    return history


@pytest.mark.parametrize("selection", CHOSEN_ON)
def test_the_rule_on_the_device_is_that_of_the_results(selection):
    """Over random histories with ties, NaN, infinities and divergences; replicas leave two epochs after they stop."""
    draw, chosen_epochs, nothing = random.Random(selection), set(), 0
    for _ in range(150):
        replicas = draw.randint(1, 4)
        history = drawn_history(draw, replicas, epochs=draw.randint(1, 8))
        kept = KeptWeights([torch.zeros(replicas, 2), torch.zeros(replicas, dtype=torch.int64)])
        left = list(range(replicas))
        for row in history:
            epoch = row["epoch"]
            if epoch >= 2 and (still := [number for number in left if history[epoch - 2]["active"][number]]):
                left = still
                kept.keep(left)
            perplexity = torch.tensor([row[f"{CHOSEN_ON[selection]}_perplexity"][number] for number in left])
            active = torch.tensor([row["active"][number] for number in left])
            parameters = torch.tensor([[number, epoch] for number in left], dtype=torch.float32)
            kept.update(epoch, perplexity, active, [parameters, torch.tensor(left) * 100 + epoch])
        for number in range(replicas):
            chosen = summarise(history, number)[f"{selection}_epoch"]
            nothing += chosen is None
            if chosen is not None:
                assert kept.epoch[number] == chosen
                parameters, buffer = kept.learned
                assert parameters[number].tolist() == [number, chosen] and buffer[number] == 100 * number + chosen
                chosen_epochs.add(chosen)
    assert len(chosen_epochs) > 5 and nothing > 5  # the histories are no trivial ones


@pytest.fixture
def states(monkeypatch):
    """The state of each replica's model at the end of each epoch, in which it may have stopped before."""
    found = {}
    update = KeptWeights.update

    def noted(self, epoch, perplexity, active, learned):
        for row, number in enumerate(self.numbers):
            found[number, epoch] = learned[0][row].clone()
        update(self, epoch, perplexity, active, learned)

    monkeypatch.setattr(KeptWeights, "update", noted)
    return found


@pytest.mark.parametrize(
    ("replicas", "settings"),
    [
        ([WILD, SLOW, FAST], STOPPING),
        # On random targets a model that overfits is best early, and not in the same epoch on val as on test.
        pytest.param(
            [(2e-2, seed) for seed in range(4)],
            {"data": splits(train=32, learnable=False), "epochs": 8},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_weights_are_those_of_the_epochs_in_the_results(tmp_path, states, replicas, settings):
    """And keeping them changes no number."""
    none, both = (fit(replicas, tmp_path / keep, **settings, keep_weights=keep) for keep in ("none", "both"))
    assert none.replicas == both.replicas and none.metrics.equals(both.metrics) and none.notes == both.notes == []
    assert none.weights == [{}] * len(replicas)
    population = Population(build_model, [seed for _, seed in replicas])
    chosen = set()
    for number, (results, weights) in enumerate(zip(both.replicas, both.weights, strict=True)):
        epochs = {selection: results[f"{selection}_epoch"] for selection in CHOSEN_ON}
        assert weights.keys() == {selection for selection, epoch in epochs.items() if epoch is not None}
        for selection, state in weights.items():
            assert same(state, model_state(population, [states[number, epochs[selection]]]))
        chosen |= set(epochs.values())
    assert len(chosen) >= 3  # they are taken at different epochs, or at none


def test_an_interrupted_training_keeps_the_same_weights(tmp_path, monkeypatch):
    """It fails in its sixth epoch, when one replica has diverged, and one has left with its best epoch behind it."""
    monkeypatch.setattr(Broken, "steps", 0)
    replicas, settings = [FAST, SLOW, WILD], STOPPING | {"checkpoint_every": 0, "keep_weights": "both"}
    with pytest.raises(RuntimeError, match="power failure"):
        fit(replicas, tmp_path / "broken", optimizer=Broken, **settings)
    resumed = fit(replicas, tmp_path / "broken", optimizer=Broken, **settings)
    assert resumed.notes == [] and Broken.steps < 28 + 5 * 7  # it did not begin anew
    unbroken = fit(replicas, tmp_path / "unbroken", **settings)
    assert unbroken.replicas[0]["official_epoch"] < 5
    same_weights(resumed, unbroken)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("before", "after", "kept", "steps", "note"),
    [
        ("none", "auto", "none", 5, "no weights of the epochs so far: none are kept"),
        ("both", "clean", "clean", 5, None),
        ("none", "official", "official", 15, "no official weights of the epochs so far"),
    ],
)
def test_a_training_goes_on_with_the_weights_that_it_is_to_keep(
    tmp_path, monkeypatch, before, after, kept, steps, note
):
    """Or begins anew, if they are asked for by name, and the checkpoint has none."""
    monkeypatch.setattr(Broken, "steps", 0)
    monkeypatch.setattr(Broken, "fails_in", 12)  # in the third epoch
    settings = {"epochs": 3, "checkpoint_every": 0}
    with pytest.raises(RuntimeError, match="power failure"):
        fit([FAST], tmp_path, optimizer=Broken, **settings, keep_weights=before)
    result = fit([FAST], tmp_path, optimizer=Broken, **settings, keep_weights=after)
    assert Broken.steps == 12 + steps
    assert result.notes == [] if note is None else note in result.notes[0]
    same_weights(result, fit([FAST], tmp_path / "unbroken", **settings, keep_weights=kept))


class Centred(nn.Module):
    """It subtracts a mean that training changes; how often is part of no state, and counts too."""

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def forward(self, x):
        y = self.proj(x)
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * y.detach().mean(dim=(0, 1))
            self.scale = self.scale * 1.05
        return (y - self.mean) * self.scale


def test_the_loaded_model_has_the_buffers_of_its_replica(tmp_path):
    def build():
        return LanguageModel(VOCAB, WIDTH, n_layers=2, make_mixer=Centred)

    data = splits(learnable=False)
    inputs, targets = map(torch.from_numpy, data["test"])
    result = fit([(1e-2, 0), (1e-3, 1)], tmp_path, data=data, build=build, keep_weights="official")
    for results, weights in zip(result.replicas, result.weights, strict=True):
        model = build().eval()
        put_in(model, unpack(pack(weights["official"], {}))[0])

        def loss(model=model):
            return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=IGNORE_INDEX).item()

        assert math.isclose(loss(), results["official_loss"], rel_tol=1e-5)
        model.blocks[1].mixer.scale.fill_(1.0)
        assert not math.isclose(loss(), results["official_loss"], rel_tol=1e-4)


class WithBuffers(nn.Module):
    """A parameter in float32, and buffers of which one is no part of the state."""

    def __init__(self, width=3):
        super().__init__()
        self.layer = nn.Linear(width, 2)
        self.register_buffer("count", torch.tensor(5))
        self.register_buffer("table", torch.arange(4.0), persistent=False)


ABOUT = {"run_id": "0123456789ab", "replica": 1, "lr": 1e-3, "epoch": 4, "test_accuracy": 0.1 + 0.2}


def packed():
    return pack(model_state(Population(WithBuffers, [0]), [torch.arange(8.0)]), ABOUT)


def test_a_file_comes_back():
    state, about = unpack(packed())
    assert about == ABOUT and set(state) == {"layer.weight", "layer.bias", "count"}
    model = WithBuffers()
    model.count.zero_()
    put_in(model, state)
    assert same(model.state_dict(), state) and model.count == 5
    assert sorted(torch.cat([p.flatten() for p in model.parameters()]).tolist()) == list(range(8))
    assert len({packed() for _ in range(20)}) == 1  # the same bytes


def test_no_damaged_file_is_loaded():
    written, draw = packed(), random.Random(0)
    damaged = [written[:size] for size in range(0, len(written), 7)]
    for _ in range(300):
        at = draw.randrange(len(written))
        damaged.append(written[:at] + bytes([written[at] ^ 1 << draw.randrange(8)]) + written[at + 1 :])
    for content in damaged:
        try:
            state, about = unpack(content)
        except ValueError:
            continue
        # A digit of what is said about the weights: they themselves are as they were.
        assert same(state, unpack(written)[0]) and about != ABOUT


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (WithBuffers(4), r"its layer.weight has shape \[2, 3\], and the model's \[2, 4\]"),
        (nn.Linear(3, 2), "it has no weight, which the model has"),
        (nn.ModuleDict({"layer": nn.Linear(3, 2)}), "it has count, which the model does not have"),
    ],
)
def test_weights_of_another_model_are_refused(model, message):
    with pytest.raises(ValueError, match=message):
        put_in(model, unpack(packed())[0])


on_gpu = {"accelerator": "gpu", "precision": "bf16"}


@pytest.mark.gpu
def test_the_host_does_not_wait_for_the_device():
    """Of an epoch's end, only `read_epoch` waits, also when replicas have left."""
    population = Population(build_model, (0, 1, 2)).cuda()
    module = PopulationTraining(
        population,
        lambda population: Muon(population, lr=[1e-3] * len(population), schedule=Constant(), total_steps=10),
        selections_kept=tuple(CHOSEN_ON),
    ).cuda()
    module.optimizer = module.make_optimizer(population)
    module._trainer = SimpleNamespace(current_epoch=0, strategy=SimpleNamespace(root_device=torch.device("cuda")))
    for replicas in (3, 2):
        if replicas == 2:
            module._keep([0, 2])
            module.optimizer.keep([0, 2])
        module.scores = [Scores(torch.rand(6, replicas, device="cuda")) for _ in CHOSEN_ON]
        module.loss_sum, module.steps_in_epoch = torch.zeros(replicas, device="cuda"), 1
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            module.on_validation_epoch_end()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert module.unread is not None
    assert (module.kept["clean"].epoch == 0).all()


@pytest.mark.gpu
def test_captured_steps_train_the_same_with_weights_kept(tmp_path):
    replicas = [WILD, SLOW, FAST]
    none, both = (fit(replicas, tmp_path / k, **STOPPING | on_gpu, keep_weights=k) for k in ("none", "both"))
    assert none.notes == both.notes == []  # all steps were captured
    assert none.replicas == both.replicas and none.metrics.equals(both.metrics)
    plain = fit(replicas, tmp_path / "plain", **STOPPING | on_gpu, keep_weights="both", cuda_graph=False)
    assert plain.replicas == both.replicas
    same_weights(both, plain)
