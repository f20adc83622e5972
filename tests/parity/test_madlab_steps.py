"""Twenty steps of mad-lab and of ours from the same values on the same rows; `make_madlab_golden.py` made mad-lab's."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from initial_values import drawn

from mixerlab.config.building import Parts, maker
from mixerlab.config.compose import compose
from mixerlab.config.values import checked
from mixerlab.kernels.fused import cross_entropy
from mixerlab.training.datamodule import Examples
from mixerlab.training.metrics import batch_scores
from mixerlab.training.optimizers import AdamW
from mixerlab.training.population import Population
from mixerlab.training.steps import PopulationSteps

DATA = Path(__file__).parents[1] / "data" / "madlab"
GOLDEN = json.loads((DATA / "steps.json").read_text())
TOLERANCE = 1e-5


def ours(values, layers):
    """mad-lab's parameters by our names; its blocks are a mixer and an MLP, each behind its norm."""
    named = {"embedding.weight": values["token_embeds.weight"]}
    body = "encoder" if "encoder.0.0.weight" in values else "model"
    for block in range(layers):
        mixer, mlp = (f"{body}.{2 * block + part}" for part in (0, 1))
        to = f"blocks.{block}."
        named[to + "mixer_norm.weight"] = values[f"{mixer}.0.weight"]
        named[to + "mlp_norm.weight"] = values[f"{mlp}.0.weight"]
        for name in ("w1", "w2", "w3"):
            named[f"{to}mlp.{name}.weight"] = values[f"{mlp}.1.{name}.weight"]
        for name, value in values.items():
            if name.startswith(f"{mixer}.1.Wqkv"):
                kind = name.rpartition(".")[2]
                parts = zip("qkv", np.split(value, 3), strict=True)
                named |= {f"{to}mixer.{letter}_proj.{kind}": part for letter, part in parts}
            elif name.startswith(f"{mixer}.1."):
                named[f"{to}mixer." + name.removeprefix(f"{mixer}.1.").replace("conv1d", "conv")] = value
    for layer in range(2 if body == "encoder" else 0):
        named[f"decoder.{layer}.norm.weight"] = values[f"decoder.{3 * layer}.weight"]
        for kind in ("weight", "bias"):
            named[f"decoder.{layer}.linear.{kind}"] = values[f"decoder.{3 * layer + 1}.{kind}"]
    named["norm.weight"] = values["unembed.0.weight"]
    return named | {f"head.{kind}": values[f"unembed.1.{kind}"] for kind in ("weight", "bias")}


def configured(case):
    name, mixer = case.split(".")
    cfg = compose("experiment=madlab", f"mixer={mixer}", f"task={name}")
    return cfg, checked(cfg)[0]


def starting_values(case, cfg):
    """Values from the distributions of mad-lab's initial values, by our names."""
    values = {name: drawn(name, how) for name, how in GOLDEN["initial_values"][case].items()}
    named = ours(values, cfg.model.n_layers)
    if cfg.mixer.name == "attn":
        named = {name.replace("mixer.out_proj", "mixer.o_proj"): value for name, value in named.items()}
    return named


def population_of(case, cfg, task):
    population = Population(lambda: Parts.of(cfg).build_model(task), (0,))
    named = starting_values(case, cfg)
    assert named.keys() == {slot.name for slot in population.layout.slots}
    with torch.no_grad():
        for slot in population.layout.slots:
            assert named[slot.name].shape == slot.shape, slot.name
            row = torch.from_numpy(named[slot.name]).flatten()
            population.parameters_by_replica[0, slot.start : slot.stop] = row
    return population


@pytest.mark.sampled(9)  # a case takes up to half a minute
@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_twenty_steps_are_mad_labs(case):
    """Losses of all steps, and loss, perplexity and accuracy of a test batch after them."""
    settings, expected = GOLDEN["settings"], GOLDEN["cases"][case]
    cfg, task = configured(case)
    population = population_of(case, cfg, task)
    with np.load(DATA / "batches.npz") as file:
        inputs, targets = (torch.from_numpy(file[f"{cfg.task.name}.{part}"]).long() for part in ("inputs", "targets"))
    options = {key: value for key, value in cfg.optimizer.items() if key not in ("lr", "weight_decay")}
    optimizer = maker(options | {"_target_": cfg.optimizer._target_}, "optimizer")(
        population=population,
        lr=[settings["lr"]],
        weight_decay=settings["weight_decay"],
        schedule=maker(cfg.schedule, "schedule")(),
        total_steps=settings["steps"],
    )
    assert isinstance(optimizer, AdamW)
    steps = PopulationSteps(population, optimizer, Examples(inputs, targets, slice(None)), bf16=False)
    rows = torch.arange(settings["steps"] * settings["rows"]).view(settings["steps"], 1, settings["rows"])
    losses = [steps.train(batch).item() for batch in rows]
    assert losses == pytest.approx(expected["losses"], abs=TOLERANCE, rel=0)

    wanted = targets[rows.numel() :][None]
    assert wanted.shape[1] == settings["test_rows"]
    with torch.no_grad():
        logits = population(inputs[rows.numel() :][None])
        loss = cross_entropy(logits, wanted)[0].item()
    macro = (batch_scores(logits, wanted)[0] / settings["test_rows"]).item()
    assert loss == pytest.approx(expected["test_loss"], abs=TOLERANCE, rel=0)
    assert np.exp(loss) == pytest.approx(expected["test_perplexity"], rel=TOLERANCE)
    assert macro == pytest.approx(expected["test_accuracy"], abs=TOLERANCE, rel=0)


@pytest.mark.parametrize("case", ["cmp.attn", "cmp.mamba", "icr.attn", "icr.mamba"])  # both models
def test_a_training_of_ours_starts_as_mad_labs_does(case):
    """Each parameter's initial values over eight seeds have the mean, spread and tail of mad-lab's, over one seed."""
    cfg, task = configured(case)
    population = Population(lambda: Parts.of(cfg).build_model(task), range(8))
    found_by_name = {
        slot.name: population.parameters_by_replica[:, slot.start : slot.stop].detach().numpy().astype(np.float64)
        for slot in population.layout.slots
    }
    for name, value in starting_values(case, cfg).items():
        expected, found = value.astype(np.float64), found_by_name[name]
        if not expected.std() or name.endswith("A_log"):  # not random
            assert np.allclose(found, expected.flatten(), rtol=1e-6, atol=0), name
            continue
        error = expected.size**-0.5
        assert abs(found.mean() - expected.mean()) < 5 * error * expected.std(), name
        assert found.std() == pytest.approx(expected.std(), rel=5 * error), name
        tails = [np.quantile(np.abs(x - x.mean()), 0.99) / x.std() for x in (found, expected)]
        assert tails[0] == pytest.approx(tails[1], rel=5 * error), name
