"""Tasks: one class each, which yamls in `conf/task/` name."""
