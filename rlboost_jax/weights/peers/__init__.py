"""Servers that fetch a version's pieces from each other while they receive it.

A piece is a file of the sealed manifest: its digest, its size, and its place in the version.
`held_pieces` is what a server serves, in a process of its own (`__main__`, orders in
`piece_orders`); `swarm` says which piece comes from whom next, without I/O; `exchange` brings them.
Who is sent to whom the manager decides (`rlboost_jax.manager.policies.weight_sources`).
"""
