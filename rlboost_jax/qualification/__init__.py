"""Kernel selection: which kernels run on the device at hand, from trials at a start.

`engine_start` and `learner_start` choose for an engine and a learner, by `kernel_choice`. A
`problem` has inputs, a reference and candidates (`engine_attention`, `learner_attention`,
`learner_experts`). `trials` have candidates tried in a `child_process`, or read what `cache` keeps;
`trial` is that process.
"""
