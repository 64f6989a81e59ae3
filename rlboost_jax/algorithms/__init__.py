"""The formulas of policy optimisation, as pure functions of arrays.

`advantages` (of groups), `returns` (of tokens, with a critic or without), `surrogates` of `ratios`,
`kl` estimates, `corrections` for samples of another distribution, `values` (a critic's loss),
`shaping` (rewards by length). learner/programs/objective.py makes an objective of them.
"""
