"""Attention over packed rows, with gradients.

`packed_reference` defines it, `packed_triton` is for GPUs.
"""
