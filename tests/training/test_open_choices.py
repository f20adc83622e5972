"""The choices that the paper leaves open: what each key does to an optimizer, a run and its identity."""

import pytest
import torch
from every_mixer import CONF
from hydra import compose, initialize_config_dir
from tiny_training import fit
from torch import nn

from mixerlab.config.building import build_model
from mixerlab.config.values import checked
from mixerlab.training.metrics import summarise
from mixerlab.training.optimizers import AdamW, Muon
from mixerlab.training.population import Grouping, Layout, Population, Rule
from mixerlab.training.schedules import Constant


def composed(*overrides):
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", list(overrides))


def model_of(*overrides):
    cfg = composed(*overrides)
    torch.manual_seed(0)
    return build_model(cfg, checked(cfg)[0])


# Optimizer


@pytest.mark.parametrize("name", ["mamba", "gdn", "mesa"])
def test_muon_may_take_filters(name):
    model = model_of(f"mixer={name}")
    by_adam, by_muon = Layout(model), Layout(model, Grouping(filters="muon"))
    changed = {slot.name for slot in by_muon.slots if slot.rule is Rule.MATRIX}
    changed -= {slot.name for slot in by_adam.slots if slot.rule is Rule.MATRIX}
    ends = {"mamba": {"conv.weight", "A_log"}, "gdn": {"q_conv.weight", "k_conv.weight", "v_conv.weight"}}
    ends["mesa"] = {"q_conv.weight", "k_conv.weight"}
    assert changed == {f"blocks.{i}.mixer.{end}" for i in range(2) for end in ends[name]}
    products = by_muon.products()
    assert all((slot.stop <= products.stop) == slot.is_product for slot in by_muon.slots)
    assert not any(slot.is_product for slot in by_muon.slots if slot.name in changed)


def test_adam_may_take_the_decoder():
    model = model_of("mixer=attn", "task=cmp")
    rules = {slot.name: slot.rule for slot in Layout(model, Grouping(decoder="adam")).slots}
    usual = {slot.name: slot.rule for slot in Layout(model).slots}
    changed = {name for name in rules if rules[name] != usual[name]}
    assert changed == {f"decoder.{i}.linear.weight" for i in range(2)}
    assert {rules[name] for name in changed} == {Rule.TABLE}


@pytest.mark.parametrize("task", ["icr", "cmp"])
def test_muon_may_take_the_head(task):
    model = model_of("mixer=attn", f"task={task}")
    usual, by_muon = Layout(model), Layout(model, Grouping(head="muon"))
    rules = {slot.name: slot.rule for slot in usual.slots}
    changed = {slot.name: slot.rule for slot in by_muon.slots if slot.rule != rules[slot.name]}
    assert changed == {"head.weight": Rule.MATRIX}
    lowered = [{slot.name for slot in layout.slots if slot.is_product} for layout in (usual, by_muon)]
    assert lowered[0] == lowered[1] and by_muon.products() == usual.products()


class Filter(nn.Module):
    """A model whose mixer is a convolution, with a linear layer beside it."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.ModuleDict({"mixer": nn.Conv1d(6, 6, 4, groups=6)})])
        self.linear = nn.Linear(5, 3)


def test_muon_moves_a_filter_as_a_matrix():
    """One step at learning rate 0.1 moves it by 0.1 sqrt(6 / 4) times the polar factor of the gradient."""
    grouping = Grouping(filters="muon")
    population = Population(Filter, (0,), grouping)
    optimizer = Muon(population, [0.1], Constant(), 1, weight_decay=0.0, filters="muon", max_grad_norm=None)
    before = population.parameters_by_replica.detach().clone()
    gradient = torch.randn_like(before)
    population.parameters_by_replica.grad = gradient
    optimizer.step()
    (slot,) = (slot for slot in population.layout.slots if slot.name == "blocks.0.mixer.weight")
    columns = slice(slot.start, slot.stop)
    moved = (population.parameters_by_replica - before)[:, columns].view(6, 4)
    u, _, vh = torch.linalg.svd(gradient[:, columns].view(6, 4), full_matrices=False)
    # Newton-Schulz brings singular values to 0.7 .. 1.2, in the same singular vectors.
    values = torch.diagonal(u.T @ moved @ vh.T) / (-0.1 * (6 / 4) ** 0.5)
    torch.testing.assert_close(u @ torch.diag(values) @ vh * (-0.1 * (6 / 4) ** 0.5), moved, rtol=1e-3, atol=1e-4)
    assert values.min() > 0.5 and values.max() < 1.3


def test_a_population_laid_out_otherwise_is_refused():
    with pytest.raises(
        ValueError, match=r"Muon has Grouping\(filters='muon'.*and the population Grouping\(filters='adam'"
    ):
        Muon(Population(Filter, (0,)), [0.1], Constant(), 1, filters="muon")


@pytest.mark.parametrize("optimizer", [Muon, AdamW])
def test_matrices_in_bfloat16_are_rounded_from_the_start(optimizer):
    population = Population(Filter, (0, 1))
    options = {"weight_decay": 0.0, "bf16_matrices": True}
    rounded = optimizer(population, [0.1, 0.1], Constant(), 2, **options)
    matrices = population.layout.span(Rule.MATRIX)
    for _ in range(2):
        values = population.parameters_by_replica.detach()
        assert torch.equal(values[:, matrices], values[:, matrices].bfloat16().float())
        assert not torch.equal(values, values.bfloat16().float())  # the others keep all their digits
        population.parameters_by_replica.grad = torch.randn_like(values)
        rounded.step()


def test_a_step_in_bfloat16_is_the_rounded_step():
    steps = []
    for rounds in (False, True):
        population = Population(Filter, (0,))
        matrices = population.layout.span(Rule.MATRIX)
        with torch.no_grad():
            values = population.parameters_by_replica[:, matrices]
            values.copy_(values.bfloat16())
        optimizer = Muon(population, [0.1], Constant(), 2, bf16_matrices=rounds)
        torch.manual_seed(3)
        population.parameters_by_replica.grad = torch.randn_like(population.parameters_by_replica)
        optimizer.step()
        steps.append(population.parameters_by_replica.detach()[:, matrices])
    assert torch.equal(steps[0].bfloat16().float(), steps[1])
    assert not torch.equal(*steps)


@pytest.mark.parametrize("optimizer", [Muon, AdamW])
def test_without_a_largest_norm_nothing_is_clipped(optimizer):
    moved = []
    for most in (None, 1e9):
        population = Population(Filter, (0,))
        stepper = optimizer(population, [0.1], Constant(), 1, max_grad_norm=most)
        torch.manual_seed(3)
        population.parameters_by_replica.grad = 1e3 * torch.randn_like(population.parameters_by_replica)
        stepper.step()
        moved.append(population.parameters_by_replica.detach())
    assert torch.equal(*moved)


@pytest.mark.parametrize("key", ["filters", "decoder", "head"])
def test_a_group_that_is_none_is_refused(key):
    with pytest.raises(ValueError, match=f"optimizer.{key}='sgd': choose adam or muon"):
        Grouping(**{key: "sgd"})


def test_a_loaded_state_goes_where_the_parameters_are():
    """PyTorch and Lightning leave state named "step" on the CPU: kernels that count on a GPU cannot read it there."""
    optimizer = Muon(Population(Filter, (0,)), [0.1], Constant(), 1)
    assert "step" not in optimizer.state[optimizer.parameters]


# mad-lab's recipe


def test_mad_labs_recipe_and_layers():
    cfg = composed("experiment=madlab", "mixer=attn", "task=cmp")
    assert (cfg.mixer.num_heads, cfg.mixer.bias, cfg.mixer.qk_norm) == (16, True, False)
    assert (cfg.optimizer.name, cfg.optimizer.lr, cfg.optimizer.betas) == ("adamw", [1e-4, 5e-4, 1e-3], [0.9, 0.999])
    assert (cfg.optimizer.weight_decay, cfg.optimizer.max_grad_norm) == (0.0, None)
    assert (cfg.trainer.epochs, cfg.trainer.stop_above, cfg.trainer.stop_when_perfect) == (200, 0.999, False)
    assert (cfg.schedule.name, cfg.model.linear_std, cfg.model.autoencoder_redraw_all) == ("constant", None, True)
    checked(cfg)


def test_an_experiments_layers_are_for_their_mixer_and_give_way_to_the_command_line():
    assert composed("experiment=madlab", "mixer=mamba").mixer.d_state == 4
    assert composed("experiment=madlab", "mixer=mamba", "mixer.d_state=8").mixer.d_state == 8
    assert composed("experiment=madlab", "mixer=gdn").mixer == composed("mixer=gdn").mixer
    assert composed("mixer=attn").mixer.num_heads == 2


# Stopping


def test_steps_to_a_test_accuracy_of_90_percent():
    def epoch(number, accuracy):
        of_split = dict(accuracy=[accuracy], token_accuracy=[accuracy], loss=[1.0], perplexity=[3.0])
        scores = {f"{split}_{key}": value for split in ("val", "test") for key, value in of_split.items()}
        return scores | {"epoch": number, "steps": [7 * (number + 1)], "active": [True], "diverged": [False]}

    def history(*accuracies):
        return [epoch(number, value) | {"train_loss": [1.0]} for number, value in enumerate(accuracies)]

    assert summarise(history(0.2, 0.9, 0.5), 0)["steps_to_90"] == 14
    assert summarise(history(0.2, 0.89), 0)["steps_to_90"] is None


def test_a_replica_stops_above_an_accuracy_on_test(tmp_path):
    """mad-lab's rule: the first epoch above that accuracy is the last one."""
    whole = fit([(0.02, 0)], tmp_path, data=None, epochs=6).metrics
    accuracies = whole["test_accuracy"]
    first = int((accuracies > accuracies.iloc[0]).idxmax()) if (accuracies > accuracies.iloc[0]).any() else None
    assert first is not None
    bound = float(accuracies.iloc[:first].max())
    stopped = fit([(0.02, 0)], tmp_path, data=None, epochs=6, stop_above=bound).metrics
    assert len(stopped) == first + 1
    assert stopped["test_accuracy"].tolist() == accuracies.iloc[: first + 1].tolist()


@pytest.mark.parametrize("value", [1.0, -0.1])
def test_a_bound_that_no_accuracy_passes_is_refused(tmp_path, value):
    with pytest.raises(ValueError, match=r"trainer.stop_above=.* must be an accuracy in \[0, 1\), or null"):
        fit([(0.02, 0)], tmp_path, stop_above=value)
