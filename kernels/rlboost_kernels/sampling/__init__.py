"""Tokens from hidden states and noise: `api` chooses, `reference` defines, `noise` has the keys."""
