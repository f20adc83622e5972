"""What is made up for the tests of `sweeps` and of `training` serves here as well."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / folder) for folder in ("sweeps", "training")]
