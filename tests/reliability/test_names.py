"""Names in tables and figures are shown as they are: no command, no markup."""

import re

import fakes
import pytest

from mixerlab.sweeps.figures.curves import run_curves
from mixerlab.sweeps.figures.sheet import save
from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.collect import collect
from mixerlab.sweeps.tables.tables import setting_table
from mixerlab.sweeps.tables.writers import to_latex, to_markdown

NAMES = [
    r"\input{/etc/passwd}",
    r"$\frac{$",
    "$x$",
    "a & b # c % d _ e { f } g ~ h ^ i",
    "a | b | c",
    "*bold* **bold** _it_ `code`",
    "<script>alert(1)</script>",
    "[link](http://example.com)",
    "a,b",
    '"quoted"',
    "_hidden",
    "mixer ÄÖ 名前",
]


@pytest.fixture
def results(tmp_path):
    for name in NAMES:  # our own runs refuse some of them
        fakes.add_run(tmp_path, [0.3, 0.8, 0.5], mixer=name, task=name, setting=name)
    return tmp_path


def test_latex_has_no_command_but_ours(results):
    text = to_latex(setting_table(best_per_cell(collect(results))))
    body = "\n".join(line for line in text.splitlines() if not line.startswith("% "))
    ours = "begin|end|toprule|midrule|bottomrule|textbf|dagger|textbackslash|textless|textgreater"
    ours += "|textasciitilde|textasciicircum|textsuperscript"
    ours += "|noalign|medskip|parbox|linewidth|footnotesize|raggedright|par"
    for command in re.findall(r"\\([A-Za-z]+)", body):
        assert re.fullmatch(ours, command), command
    assert r"\textbackslash{}input\{/etc/passwd\}" in body
    plain = re.sub(r"\\[&%#_${}]", "", body).replace(r"$\dagger$", "")
    assert not set("%#$") & set(plain)
    rows = [line for line in plain.splitlines() if line.endswith(r"\\")]
    assert len(rows) == len(NAMES) + 1 and {row.count("&") for row in rows} == {len(NAMES) + 1}


def test_markdown_has_one_column_for_each_mixer(results):
    lines = to_markdown(setting_table(best_per_cell(collect(results)))).splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {len(NAMES) + 3}
    for markup in ("<script>", "[link]", "`code`", "*bold*"):
        assert not any(re.search(rf"(?<!\\){re.escape(markup)}", line) for line in table)


@pytest.mark.parametrize("name", [r"$\frac{$", "$x$"])
def test_a_dollar_is_no_formula(tmp_path, name):
    fakes.add_run(tmp_path, [0.3, 0.8, 0.5], mixer=name)
    (folder,) = tmp_path.glob("runs/*")
    figure = run_curves(folder)
    save(figure, folder / "curves")
    assert name in figure.texts[0].get_text() and (folder / "curves.png").stat().st_size > 10_000
