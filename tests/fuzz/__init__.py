"""Frames and requests that no honest peer sends, at the manager and at what it serves.

    python -m tests.fuzz --frames=1000000 --seed=1     the manager in this process
    python -m tests.fuzz --seconds=180 --seed=1        a manager process, through its port

`corpus/` holds a valid frame or two of every message; `mutators.py` makes nonsense of them.
"""
