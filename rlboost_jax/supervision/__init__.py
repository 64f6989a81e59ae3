"""How a trainer gets on, and how it ends: what its supervisor goes by.

pulse, stalls, stacks, exits.
"""
