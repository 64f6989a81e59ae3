"""Products of groups of rows, each with its own matrix.

`grouped_api` chooses, `grouped_reference` defines.
"""
