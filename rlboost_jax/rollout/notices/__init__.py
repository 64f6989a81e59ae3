"""Preemption notices, as clouds give them to a machine.

`watch`: `watch_machine`, for the life of a server. `aws`, `gcp` and `azure` read what their
`metadata` servers answer.
"""
