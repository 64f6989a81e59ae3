"""How tool calls are written in a turn: a module a format, `choice` picks one.

Each parser is a function of text alone, takes time linear in it, and raises nothing: what is
no whole call is a call with a `problem`.
"""
