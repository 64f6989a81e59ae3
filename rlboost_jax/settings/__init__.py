"""The settings of a run: each stands once, as a field of a record.

`run`: `RunConfig` has the sections, a module for each (`engine`, `learner`, `fleet`, …). `setting`:
what a field says of itself; `explain` makes the reference of it, `ranges` the first checks, and
`validation` has the checks across fields. `load`: from ml_collections and config.json to
records. `changes`: what may change in a run that has begun. `huggingface`: checkpoints as settings.
"""
