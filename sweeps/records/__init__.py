"""The files of a run: what they say, which run they are of, who may write them, and where they come from."""

from mixerlab import require_prefix

require_prefix(__name__)
