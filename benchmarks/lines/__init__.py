"""Lines that are long, narrow or lossy, for streams of real processes and in virtual time."""
