"""A server whose device is somebody else's too: what that one is left, and when we may run."""
