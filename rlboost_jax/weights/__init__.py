"""Policy versions between the learner and the servers: written, announced, fetched, verified.

`snapshots`: `SnapshotStore` has versions on disk, written by `shares` where a trainer has several
processes. `serve`: files over HTTP, by the process of `file_server`. `pull`: `Puller` fetches what
a manifest names, by `file_sources`, into `leaf_arrays`. `compiled` and `wheels` take programs and
packages the same way. `delta_codec` has exact differences of two versions of an array,
`delta_packs` those of all files of a version, and a server applies them to its `delta_base`.
"""
