"""The formulas of policy optimisation, as pure functions of arrays, and what is made of them.

One module per algorithm that people cite (`grpo`, `gspo`, `ppo`, …) names its source and each
formula that it is made of. The formulas: `advantages` (of groups), `returns` (of tokens, with a
critic or without), `surrogates` of `ratios`, `kl` estimates, `corrections` for samples of another
distribution, `values` (a critic's loss), `shaping` (rewards by length).
learner/programs/objective.py makes an objective of them.
"""
