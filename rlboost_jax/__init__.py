"""Reinforcement learning of language models on reserved and preemptible accelerators."""

__version__ = "0.1.0"  # pyproject.toml reads it; rlboost_kernels has the same
