"""A rollout server: a process with one engine that generates for whichever run it joins.

`server` starts it. `client` is its life with a manager, one `manager_stream` after the other;
`engine_worker` is the engine's own thread. `weight_updates` takes announced versions,
`renewal_timing` keep the lease, `notices` watch for preemptions. `sharing`: a device that others
use, too. `zygote` forks servers.
"""
