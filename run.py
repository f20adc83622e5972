"""Runs the `mixerlab` command from this checkout: `python run.py mixer=parallax task=icr`."""

from mixerlab.command import main

if __name__ == "__main__":
    main()
