"""What answers a policy's turns: tools, games, adapters, and the processes that they run in."""
