"""The process that serves weights, and the manager's side of it.

`file_server_process.FileServer` starts and watches it; `file_server_orders` is what it is sent over
its standard input.
"""
