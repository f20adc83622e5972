"""Benchmarks refuse to start where there is no GPU to measure, and measure what a run does."""

import copy
import importlib
import re
from pathlib import Path

import pandas as pd
import pytest
import torch

import mixerlab
from mixerlab.benchmarks import layers
from mixerlab.benchmarks.generate import EagerAttention, generated
from mixerlab.benchmarks.language_model import Peer
from mixerlab.benchmarks.measuring import Table
from mixerlab.benchmarks.parallax_decode import heat_map
from mixerlab.benchmarks.throughput import bytes_of_token
from mixerlab.benchmarks.without_kernel import VARIANTS, left_out
from mixerlab.generate import TokenReader

ROOT = Path(__file__).parents[1]
WRITING = ("generate", "language_model", "layers", "parallax_decode", "parallax_kernel", "throughput", "without_kernel")


@pytest.mark.parametrize("name", WRITING)
def test_without_a_gpu_nothing_is_started(monkeypatch, tmp_path, name):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [name, "--output", "made"])
    with pytest.raises(SystemExit, match="needs an NVIDIA GPU"):
        importlib.import_module(f"mixerlab.benchmarks.{name}").main()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_a_variant_leaves_out_is_there(variant):
    pytest.importorskip("triton")
    with left_out(VARIANTS[variant]):
        pass


def test_the_ema_that_is_measured_is_the_readmes():
    _, code = (ROOT / "benchmarks" / "ema.py").read_text().split("\n\n", 1)
    assert f"# mixers/ema.py\n{code}```" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", ["README.md", "results/benchmarks/throughput/README.md"])
def test_the_pages_speeds_are_those_of_the_table(page):
    measured = pd.read_csv(ROOT / "results" / "benchmarks" / "throughput" / "table.csv")
    first = measured[measured["run"] == 0]
    rates = {(row.mixer, row["T"], row.replicas): row["replica-steps/s"] for _, row in first.iterrows()}
    lines = [line.strip("|").split("|") for line in (ROOT / page).read_text().splitlines() if line.startswith("|")]
    (start,) = (number for number, line in enumerate(lines) if "T=128, 1 replica" in line[1])
    columns = [tuple(map(int, re.findall(r"\d+", column))) for column in lines[start][1:]]
    for name, *cells in lines[start + 2 : start + 7]:
        assert cells == [f" {rates[name.strip(' `'), *column]:,.0f} " for column in columns]


def test_a_later_run_keeps_the_columns_of_the_table(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "card")
    Table(tmp_path, "one").add({"B": 1, "warm_us": 2.5, "cold_us": 3.5})
    Table(tmp_path, "one").add({"B": 2, "cold_us": 5.5, "warm_us": 4.5})
    assert (tmp_path / "table.csv").read_text() == "run,B,warm_us,cold_us\n0,1,2.5,3.5\n1,2,4.5,5.5\n"


def test_the_heat_map_shows_the_last_run_that_measured_both():
    columns = ["run", "B", "S", "Hq", "Hkv", "D", "decoder", "cold_us"]
    shapes = (1, 128, 8, 8, 64), (4, 256, 8, 8, 64), (1, 128, 32, 8, 64)
    rows = [(run, *shape, "sdpa", 5 + run) for run in (0, 1) for shape in shapes]
    rows += [(run, *shape, "ours", 4) for run in (0, 1) for shape in shapes]
    rows += [(2, *shapes[0], "ours", 1), (2, *shapes[1], "sdpa", 1)]
    first, second = heat_map(pd.DataFrame(rows, columns=columns), "a card").axes
    assert {text.get_position(): text.get_text() for text in first.texts} == {(0, 0): "1.50", (1, 1): "1.50"}
    assert [text.get_text() for text in second.texts] == ["1.50"]


def test_bytes_of_a_token_are_counted_by_projections():
    small, wide = (bytes_of_token(mixerlab.build_model(f"mixer={mixer}", "task=icr")) for mixer in ("attn", "parallax"))
    assert wide - small == 2 * 10 * 128  # two layers with one more projection
    assert 20_000 < small < 40_000


def test_the_peer_of_language_models_computes_the_same():
    model = mixerlab.build_model("mixer=attn", "task=icr")
    peer, rows = Peer(model, 9, torch.device("cpu")), torch.randint(0, 16, (3, 9))
    torch.testing.assert_close(peer.logits(rows), model(rows), rtol=1e-5, atol=1e-5)
    trained = [id(parameter) for optimizer in peer.optimizers for parameter in optimizer.param_groups[0]["params"]]
    assert sorted(trained) == sorted(map(id, model.parameters()))


@torch.no_grad()
def test_the_peer_of_generation_computes_the_same():
    model = mixerlab.build_model("mixer=attn", "task=icr").eval()
    rows, reader = torch.randint(0, 16, (3, 9)), EagerAttention(model, 3, 9)
    for _ in range(2):
        reader.restart()
        logits = torch.cat([reader.step(tokens) for tokens in rows.split(1, dim=1)], dim=1)
        torch.testing.assert_close(logits, model(rows), rtol=1e-5, atol=1e-5)
    made = generated(reader, rows[:, :1], 9)
    assert torch.equal(made, generated(TokenReader(model, 3, 9), rows[:, :1], 9))
    assert torch.equal(made[:, 1:], model(torch.cat((rows[:, :1], made[:, :-1]), dim=1)).argmax(-1)[:, 1:])


@pytest.mark.parametrize(("name", "heads"), [("gdn", 2), ("mesa", 1)])
def test_the_errors_of_a_layer_are_those_of_bfloat16(monkeypatch, capsys, name, heads):
    def fails(x):
        raise RuntimeError("not of this length")

    monkeypatch.setattr(layers, "graph_ms", lambda run: 1.0)
    monkeypatch.setattr(layers, "peer", lambda module: None)
    case = layers.layer_case(name, heads, 40, 3, torch.device("cpu"))
    changed = copy.deepcopy(case.ours)
    changed.q_proj.weight.data.neg_()
    same, other = layers.measure(case._replace(peers={"same": case.ours, "changed": changed, "none": fails}))
    for error in ("ours error", "ours gradient error", "peer error", "peer gradient error"):
        assert 1e-3 < same[error] < 0.03
    assert other["peer error"] > 0.1
    assert "none is left out here: RuntimeError: not of this length" in capsys.readouterr().out


def test_the_errors_of_the_operator_are_those_of_bfloat16(monkeypatch):
    monkeypatch.setattr(layers, "graph_ms", lambda run: 1.0)
    monkeypatch.setattr(layers, "peer", lambda module: None)
    case = layers.operator_case(1, 40, 3, torch.device("cpu"))
    (row,) = layers.measure(case._replace(peers={"with a state": lambda *inputs: (case.ours(*inputs), None)}))
    assert 1e-3 < row["peer error"] == row["ours error"] < 0.01
    assert 1e-3 < row["peer gradient error"] == row["ours gradient error"] < 0.01
