"""Runs the `mixerlab` command from this checkout: `python run.py mixer=parallax task=icr`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
# Python puts ROOT first, where `kernels` and `mixers` would hide other packages of these names, such as a user's.
sys.path[:] = [str(ROOT / "src"), *(folder for folder in sys.path if folder not in (str(ROOT), str(ROOT / "src")))]

from mixerlab.cli import main  # noqa: E402

if __name__ == "__main__":
    main()
