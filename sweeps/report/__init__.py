"""Tables and figures of a results folder in files, and beside published numbers."""
