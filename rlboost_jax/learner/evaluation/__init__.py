"""Evaluation of a policy on held-out prompts.

`measurement`: `Measurement`, by the fleet and beside the work of a step. `scoring`: when, and what
becomes of the `Score`. `local_measurement`: by an engine of this process, without a manager
(`local_batch`).
"""
