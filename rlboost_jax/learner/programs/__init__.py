"""Programs that a learner compiles.

`policy`: `PolicyPrograms` (gradients, log-probabilities, gaps, the update); `critic`:
`CriticPrograms`. They are made of `passes` over a packed batch, the `objective` of `logprobs`, and
`apply`.
"""
