"""`python -m mixerlab` is the command `mixerlab`."""

import os
import sys

from mixerlab.cli import main

if sys.path[0] == os.getcwd():  # in a checkout its `mixers` would be found in place of a user's
    del sys.path[0]
main()
