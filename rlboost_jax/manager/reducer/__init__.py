"""The manager's state machine: an event and a time go in, actions come out.

No socket, clock or thread.

`manager.Manager` is the whole: the order in which all others are called stands there, and who is
made of whom in `components`. `servers` and `trainer` take what those two say, `provisioning` what
provider and market do; `rollout_dispatch` chooses who gets which rollout, `placements` carries that
out; `recovery` gives a journal back to those who wrote it. `manager_view` is for readers.
"""
