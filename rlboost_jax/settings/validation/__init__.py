"""Every check of a configuration, before the first device is touched.

`run_checks`: `check` and `check_files`, which ask the others, a section each.
"""
