"""Policies of the manager: numbers in, choices out. Nothing here knows a record of the run.

`placement` (who gets which rollout), `window` (Algorithm 1), `forecast` (how a step ends, from
`stations` of engines and `learner_pace` of the learner), `fleet_size`, `merging` (when instances
rest), `order`, and what these learn from: `length_prediction`, `speeds`, `throughput`, `drag`.
`advice` says which policy fits a fleet.
"""
