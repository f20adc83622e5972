"""Makes the rows, tables and figures of results/ anew from the committed records.

    python results/remake.py [NAME ...]     NAME: one of the folders with rows or records; default: all

Run it in a checkout in which mixerlab is installed. `makers/NAME.py` makes those of results/NAME, and the tables
of its page below a line `<!-- TABLE -->`. What the page says of these numbers in prose is left to its author.
"""

import argparse
import tempfile
from importlib import import_module
from pathlib import Path

RESULTS = Path(__file__).resolve().parent
MAKERS = sorted(path.stem for path in RESULTS.glob("makers/*.py") if path.stem != "common")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *MAKERS], help=f"of {', '.join(MAKERS)}")
    for name in parser.parse_args().names or MAKERS:
        with tempfile.TemporaryDirectory() as scratch:
            import_module(f"makers.{name}").make(RESULTS / name, Path(scratch))
        print(f"results/{name}", flush=True)


if __name__ == "__main__":
    main()
