"""Attention over packed rows, with gradients: `reference` defines it, `triton` is for GPUs."""
