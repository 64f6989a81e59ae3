"""The trainer's side of its fleet.

`link`: the stream to the manager. `manager_process`: find or start that one, and see it off.
`reserved`: engines on the learner's own devices. `life`: what is shown of the fleet, and its end.
"""
