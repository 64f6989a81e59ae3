"""Calibration: a recorded run becomes the settings of its simulation.

`observed`: what its events say. `run_calibration`: laws fitted to that (`fits`), as settings, and a
test of them. `hindsight`, `advice_inputs`: what its manager predicted, or would have.
"""
