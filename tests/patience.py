"""How long a test waits for what has to come.

It guards against hanging and claims nothing about speed: on a machine that gives a process a
quarter of a core and that runs ten others, all that is waited for is long there by then.
"""

PATIENCE_SECONDS = 1200.0
