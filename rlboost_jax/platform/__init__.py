"""What a process asks of its host: files, children, signals, memory, processors.

Files: `durable` writes what a power cut leaves whole, `at_rest` digests, `record_stream` is read up
to the first damaged byte, `disk_thread` works on a disk that may hang; `bounded_files` and
`foreign_json` read what others wrote. Processes: `program_start`, `fork_server`, `restarts`,
`exits`, `process_liveness`, `pulse` and `stalls` (signs of life), `output_relay` (printing never
blocks), `frames` (messages between processes). The host: `busy`, `exhaustion`, `private_paths`,
`proxies`, `jax_switches`, `compile_cache`. `mistakes`: errors that a second start would meet again.
"""
