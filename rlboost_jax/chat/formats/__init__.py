"""Formats of tool calls in a turn, a module each; `format_choice` picks one.

Each parser is a function of text alone, takes time linear in it, and raises nothing: what is
no whole call is a call with a `problem`.
"""
