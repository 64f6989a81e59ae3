"""Updates of the state by one batch.

`batch`: `BatchUpdate` takes micro-batches in and makes the updates, by `optimizer_steps`.
`learner`: `Learner` is what they are made with. Gradients are gathered by `accumulation`, in a
`tree_sum`.
"""
