"""The MAD tasks as generators of rows, and the settings that their yamls name."""
