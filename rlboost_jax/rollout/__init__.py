"""A rollout server: a process with one engine that generates for whichever run it joins.

`server` starts it. `client` is its life with a manager, one `stream` after the other; `worker` is
the engine's own thread. `weight_updates` takes announced versions, `renewals` keep the lease,
`notices` watch for preemptions. `sharing`: a device that others use, too. `zygote` forks servers.
"""
