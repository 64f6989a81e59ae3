"""Live page of the run for browsers: a process of its own, and the manager's side of it.

`page_process` starts it once somebody connects; `page_app` is what it serves, from the run's files
alone.
"""
