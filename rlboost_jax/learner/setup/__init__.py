"""From a configuration to a session that can train.

`opening`: in which order. `makers`, `kernels`: what is chosen before a device is touched. `fit`:
whether it fits the devices. `preparation`: what every process of a trainer does. `warmup`, with its
`lessons`: supervised updates before the first step. `complete`: whether there is anything to do.
"""
