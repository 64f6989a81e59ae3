"""The manager and the learner's decisions in virtual time, with simulated engines and markets.

`run`: `simulate` is the whole; its settings are `records`. `world`: `World` is one run of one of
the `systems`: the product's manager, a `trainer`, a `server` for each instance, weights on `links`.
`bound`: what no policy can beat. `market`, `calibration` and `plan` are packages of their own.
"""
