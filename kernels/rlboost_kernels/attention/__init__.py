"""Paged attention: `attention_api` chooses and checks, `attention_reference` defines.

The other modules compute the same fast.
"""
