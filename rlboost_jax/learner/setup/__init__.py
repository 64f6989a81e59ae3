"""Set-up: a configuration becomes a session that can train.

`session_setup`: the list of steps. `fleet_setup`: manager, engines and publisher. `makers`,
`kernels`: what is chosen before a device is touched. `fit`: whether it fits the devices.
`preparation`: what every process of a trainer does. `warmup`, with its `lessons`: supervised
updates before the first step, on what a task generates; `sft`: on rows of a data set. `complete`:
whether there is anything to do.
"""
