"""Preemption notices, as clouds give them to a machine.

`notice_watch`: `watch_machine`, for the life of a server. `aws_notices`, `gcp_notices` and
`azure_notices` read what their `metadata_server` servers answer.
"""
