"""Environments that answer a policy's turns: tools, games, adapters, and their processes."""
