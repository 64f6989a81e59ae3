"""The settings of a run: each stands once, as a field of a record.

`run_config`: `RunConfig` has the sections, a module for each (`engine_config`, `learner_config`,
`fleet_config`, …). `setting`: what a field says of itself; `explain` makes the reference of it,
`ranges` the first checks, and `validation` has the checks across fields. `config_loading`: from
ml_collections and config.json to records. `changes`: what may change in a run that has begun.
`huggingface`: checkpoints as settings.
"""
