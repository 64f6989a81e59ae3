"""Comparison of runs: digests step by step, what differs between them, and curves.

Only the files in the runs' folders are read, so a run may be alive and does not notice it.
"""
