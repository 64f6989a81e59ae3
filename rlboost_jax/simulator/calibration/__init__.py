"""From what a run recorded to a simulation of it.

`observed`: what its events say. `calibrate`: laws fitted to that (`fits`), as settings, and a test
of them. `hindsight`, `advice`: what its manager predicted, or would have.
"""
