"""One step's stream of responses.

`step_stream`: `StepStream` decides what is next, without clock or I/O; the simulator's learner asks
it, too. `stream_driver`: `drive` does it, in real time. `micro_batches` and `dynamic_sampling` say
which groups are trained together, and which at all.
"""
