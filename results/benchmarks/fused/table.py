"""The table of `kernels/fused/README.md`: `python results/benchmarks/fused/table.py`.

What a training step takes without an operator, relative to the step with all of them.
"""

from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
MIXERS, LENGTHS = ("attn", "parallax", "gdn", "mamba", "mesa"), (128, 1024)


def main() -> None:
    table = pd.read_csv(HERE / "fused.csv")
    later = pd.read_csv(HERE / "inductor.csv").dropna(subset="step ms")
    later = later[later["variant"] != "as it is"]  # of the mixers that refused Inductor in the first file
    table = pd.concat([table.dropna(subset="step ms"), later])
    wide = table.pivot_table(index="variant", columns=["mixer", "T"], values="step / as it is")
    columns = [(mixer, length) for mixer in MIXERS for length in LENGTHS]
    wide = wide[columns].drop(index="as it is")
    # A model that does not call an operator loses nothing without it.
    single = wide.index.str.startswith("without ")
    means = wide.mean(axis=1).where(~single, wide.fillna(1.0).mean(axis=1))
    print("| | " + " | ".join(f"{mixer} {length}" for mixer, length in columns) + " | mean |")
    print("|---|" + "---|" * (len(columns) + 1))
    for variant, mean in means.sort_values().items():
        cells = ["" if pd.isna(value) else f"{value:.3f}" for value in [*wide.loc[variant], mean]]
        print(f"| {str(variant).replace('without ', '')} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
