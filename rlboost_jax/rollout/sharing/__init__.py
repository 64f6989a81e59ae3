"""Sharing of a device with other programs: how much of it the server may use, and when."""
