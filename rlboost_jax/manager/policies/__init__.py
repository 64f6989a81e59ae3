"""What a manager chooses by: numbers in, choices out. Nothing here knows a record of the run.

`placement` (who gets which rollout), `window` (Algorithm 1), `forecast` (how a step ends),
`fleet_size`, `order`, and what these learn from: `lengths`, `speeds`, `throughput`, `drag`.
`advice` says which policy fits a fleet.
"""
