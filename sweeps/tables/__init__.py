"""Records as rows, and rows as tables."""
