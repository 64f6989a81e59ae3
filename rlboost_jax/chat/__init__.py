"""Tokens in, tokens out: what a conversation's next prompt is, and what a sampled turn says.

`conversation` is the interface, `opening` makes one and proves it.
"""
