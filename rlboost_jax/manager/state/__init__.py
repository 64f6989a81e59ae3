"""What a manager knows: the records of a run, each of them changed by its own verbs alone.

`ledger` (open requests and their tokens, in `rollouts`), `roster` (servers with a living stream,
in `instances` and `index`), `fleet` (servers that the provider runs), `versions` (published
weights), `token_rows` (a batch of tokens, checked), `usage`.
"""
