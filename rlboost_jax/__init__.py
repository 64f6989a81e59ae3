"""Reinforcement learning of language models on reserved and preemptible accelerators."""
