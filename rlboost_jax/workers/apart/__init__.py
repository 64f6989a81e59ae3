"""Processes of a program and of its test, and the values exchanged between them."""
