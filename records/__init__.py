"""The files that runs and sweeps leave: what they say, which run they are of, who may write them, and their origin."""
