"""Tokens from hidden states and noise.

`sampling_api` chooses, `sampling_reference` defines, `noise` has the keys.
"""
