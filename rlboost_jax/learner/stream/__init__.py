"""One step, as it comes in.

`step_stream`: `StepStream` decides what is next, without clock or I/O; the simulator's learner
asks it, too. `driver`: `drive` does it, in real time. `micro_batches` and `dynamic_sampling` say
which groups are trained together, and which at all.
"""
