"""Other engines for CPU beside ours: the same weights, prompts and threads, in turns.

`python -m benchmarks.peers` is the comparison, `checkpoint.py` the weights on disk, and every other
file one peer, which is imported only if it is asked for.
"""
