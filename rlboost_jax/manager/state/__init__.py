"""What a manager knows: the records of a run, each of them changed by its own verbs alone.

`ledger` (open requests and their tokens, in `rollouts` and `rollout_queue`), `roster` (servers with
a living stream, in `instances` and `index`, called by their `names`), `fleet` (servers that the
provider runs), `versions` (published weights); `owners` has them together. An instance is a
`lease`, `parameters`, `held_rollouts`, an `activity` (with its `usage`) and a `departure`.
`token_rows` is a batch of tokens, checked.
"""
