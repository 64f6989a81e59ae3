"""One Python file per run; each has `get_config()`."""
