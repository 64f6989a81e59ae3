"""The run in a browser: a process of its own, and the manager's side of it.

`process` starts it once somebody connects; `app` is what it serves, from the run's files alone.
"""
