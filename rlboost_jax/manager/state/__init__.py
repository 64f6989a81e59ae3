"""Records of a run, each of them changed by its own methods alone.

`ledger` (open requests and their tokens, in `rollouts` and `rollout_queue`), `roster` (servers with
a living stream, in `instances` and `roster_index`, called by their `server_names`),
`fleet_machines` (servers that the provider runs), `versions` (published weights); `owners` has them
together. An instance is a `lease`, `server_parameters`, `held_rollouts`, an `activity` (with its
`engine_usage`) and a `departure`. `token_rows` is a batch of tokens, checked.
"""
