"""Commands: each module parses its options, builds what it needs and runs it.

`commands` is the program, with the table of all commands; `completion`: what shells complete.
Three more are modules at the top of the package: main, simulate and export.
"""
