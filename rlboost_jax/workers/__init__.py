"""Processes that run code of others and may vanish.

`worker_pool`: workers of one `worker_kind` and the `worker_sessions` in them, on this host
(`local_workers`, each a `worker_process`, or one of `episode_forks`) and on others
(`remote_workers` at the trainer, `worker_host` there). Kinds: environments, reward functions; each
is a program that begins in `worker_program`.
`sandbox`: programs that nobody has read, in a `sandbox_child`; `apart`: a program and its test in
two of them. `template_process`: chat templates, rendered in a `template_child`.
"""
