"""Standard output through a process that always reads, so that printing never blocks a run.

`start`: `speak_through_relay` starts it. `passing` is the process.
"""
