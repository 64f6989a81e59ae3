"""Providers, which start rollout servers, and the market that takes them away.

`base` is the seam: what the manager asks of a provider and hears from it. `local` and `none` are
providers, `provider_choice` opens the one that `fleet.provider` names, and docs/how-to/providers.md
says how to write another. `market`, `chaos` and `synthetic_trace` say when capacity comes and goes.
"""
