"""Products of groups of rows, each with its own matrix: `api` chooses, `reference` defines."""
