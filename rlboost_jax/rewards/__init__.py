"""What judges responses: reward functions, in processes of their own.

`judge`: `Judge` asks all functions of a run and adds up what they say; `verdict` is its answer.
`functions` finds them by name; `builtin`, `code` and `math_answers` come with the package. Calls
are made by a `reward_worker`, each as a `forked_call`; `http_rewards`: a function behind HTTP.
"""
