"""Who may connect to a process of a run, with what, and how much each may send.

`run_files`: tokens and addresses by which a run's manager is found. `authority`: certificates.
`credentials`: what opens a manager; `authorization` checks it. `gate` and `listener_limits` bound
what a listener holds, `bytes_in_flight` and `peer_limits` what is sent to it. `seal`: manifests
that only the run's trainer can have made; `snapshot_names`: names that these may use.
"""
