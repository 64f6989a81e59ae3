"""Which machines a simulated market gives and takes, and when.

`simulated_market`: of a configuration. `availability` reads traces of others, `hazard` draws or
fits synthetic ones (with `renewal`). `kinds`: speed, price, start-up and notice of the machines of
each type.
"""
