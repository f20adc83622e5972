"""Properties that a user's code must have: called by `mixerlab check` and by every run."""
