"""A server that shares its device: how much of it the server may use, and when it may run."""
