"""The manager: who generates what, with which version, on which instance. No JAX here.

`events` come in and go out of a deterministic state machine: `reducer` (in which order), `state`
(what it knows) and `policies` (how it chooses) have no I/O. `service` has all of it.
`journal_entries` is what a manager that was killed is restored from.
"""
