"""Checkpoints of Hugging Face as settings, and back. No JAX here.

`config`: a config.json as fields of `ModelConfig`. `families`: a row for each family.
`rope_scaling`: its rotary positions. `sources`: where the files are. `keys`: a config.json's
values, each of its kind.
"""
