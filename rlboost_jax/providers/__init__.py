"""Who starts rollout servers, and what takes them away again.

`base` is the seam: what the manager asks of a provider and hears from it. `local` and `none` are
providers, `choice` opens the one that `fleet.provider` names, and
docs/how-to/providers.md says how to write another. `market`, `chaos` and `trace` say when capacity
comes and goes.
"""
