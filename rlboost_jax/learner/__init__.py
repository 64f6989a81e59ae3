"""The trainer: one process, or several, that make the updates of a run.

`training`: `run_training` sets a run up and takes it down. `loop`: `TrainingLoop` goes round once
for each update; `session` is what it has, `state` what it changes, `policy_versions` what it
publishes; `step_observers` are shown each finished step. `setup`, `stream` (what arrives
in a step), `episodes`, `programs`, `update`, `evaluation`, `checkpoints`, `fleet` and `processes`
are packages of their own. `supervisor` starts a trainer again.
"""
