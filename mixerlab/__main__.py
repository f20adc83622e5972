"""`python -m mixerlab` is the command `mixerlab`."""

from mixerlab.cli import main

main()
