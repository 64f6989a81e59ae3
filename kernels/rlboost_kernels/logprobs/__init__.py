"""Log-probabilities of given tokens, without whole logits: `api` chooses, `reference` defines."""
