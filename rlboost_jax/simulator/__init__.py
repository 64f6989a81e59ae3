"""The manager and the learner's decisions in virtual time, with simulated engines and markets.

`simulation_run`: `simulate` is the whole; its settings are `sim_config`. `world`: `World` is one
run of one of the `systems`: the product's manager, a `simulated_trainer`, a `simulated_server` for
each instance, weights on `links`. `weight_rounds`: one version to thousands of servers. `bound`:
what no policy can beat. `market`, `calibration` and `plan` are packages of their own.
"""
