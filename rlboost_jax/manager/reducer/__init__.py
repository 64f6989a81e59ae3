"""What a manager does: an event and a time go in, actions come out. No socket, clock or thread.

`manager.Manager` is the whole; `servers` and `trainer` take what those two say, `dispatch` brings
rollouts to instances, `recovery` reads a journal back.
"""
