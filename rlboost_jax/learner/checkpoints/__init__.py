"""Checkpoints and the other files that a run resumes from.

`writing`: `Checkpoints` keeps them beside the steps. `reading`: what they hold, and what is wrong
with damaged ones, by `leaf_digests`. `fallback`: which one a run goes on from. `best`, `base`,
`origin`: what is kept besides. `forking`: a run that begins with another's. `folders` and
`orbax_files` know where and in what format, `write_waits` until when.
"""
