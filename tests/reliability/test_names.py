"""Names in tables and figures are shown as they are: no command, no markup."""

import fakes
import pytest

from mixerlab.sweeps.figures.curves import run_curves
from mixerlab.sweeps.figures.sheet import save
from mixerlab.sweeps.tables.tables import setting_table
from mixerlab.sweeps.tables.writers import to_latex, to_markdown

NAME = r"\input{/etc/passwd} $x$ & # % _a_ b_c ~ ^ | *d* `e` <f> [g](h) ÄÖ 名前"
LATEX = r"\textbackslash{}input\{/etc/passwd\} \$x\$ \& \# \% \_a\_ b\_c \textasciitilde{} \textasciicircum{} | *d* `e`"
LATEX += r" \textless{}f\textgreater{} [g](h) ÄÖ 名前"
MARKDOWN = r"\\input{/etc/passwd} $x$ & # % \_a\_ b_c \~ ^ \| \*d\* \`e\` \<f\> \[g](h) ÄÖ 名前"


@pytest.mark.parametrize(
    ("write", "shown", "between"), [(to_latex, LATEX, " & "), (to_markdown, MARKDOWN, " | ")], ids=["latex", "markdown"]
)
def test_a_table_shows_a_name_as_it_is(tmp_path, write, shown, between):
    fakes.add_run(tmp_path, [0.3, 0.8, 0.5], mixer=NAME, task=NAME, setting=NAME)  # our own runs refuse some of it
    text = " ".join(write(setting_table(fakes.cells_of(tmp_path))).split())
    assert between.join([shown, shown, "0.800"]) in text and f"setting{between}{shown} " in text


def test_a_dollar_is_no_formula(tmp_path):
    fakes.add_run(tmp_path, [0.3, 0.8, 0.5], mixer=r"$\frac{$")
    (folder,) = tmp_path.glob("runs/*")
    save(run_curves(folder), folder / "curves")
    assert (folder / "curves.png").stat().st_size > 10_000
