"""Training data: prompts, tokenizers, and tasks that come with the package.

`exercises`: `Exercises` is the interface, `open` makes those of a run. `tasks`: generated ones
(`clock_task`, `reversal_task`, `running_sum_task`). `dataset`: `Dataset` is one that is read, from
`dataset_rows` by way of `selection` and `questions`. `prompt_stream`: training prompts by random
access. `tokenizers`: text to token ids.
"""
