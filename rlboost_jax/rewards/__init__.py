"""What judges responses: reward functions, in processes of their own.

`judge`: `Judge` asks all functions of a run and adds up what they say; `verdict` is its answer.
`functions` finds them by name; `builtin`, `code` and `math_answers` come with the package,
`service` asks an HTTP server. `pool` and `concurrent` are the trainer's side of a `worker` and a
`concurrent_worker`. `sandbox`: programs that nobody has read, in a `sandbox_child`;
`apart`: a program and its test in two of them.
"""
