"""Pages of keys and values: `update` writes new tokens into them, `copy` copies whole pages."""
