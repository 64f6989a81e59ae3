"""The process that serves weights, and the manager's side of it.

`process.FileServer` starts and watches it; `orders` is what it is sent over its standard input.
"""
