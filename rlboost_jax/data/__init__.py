"""What a run trains on: prompts, tokenizers, and tasks that come with the package.

`exercises`: `Exercises` is the interface, `open` makes those of a run. `tasks`: generated ones
(`clock`, `reversal`, `running_sum`). `dataset`: `Dataset` is one that is read, from `rows` by way
of `selection` and `questions`. `prompts`: training prompts by random access. `tokenizers`: text to
token ids.
"""
