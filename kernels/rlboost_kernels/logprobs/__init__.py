"""Log-probabilities of given tokens, without whole logits.

`logprobs_api` chooses, `logprobs_reference` defines.
"""
