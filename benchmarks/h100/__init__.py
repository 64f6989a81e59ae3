"""What an H100's compiler makes of the programs of a run, without an H100."""
