"""Which machines to buy: `rlboost plan`.

`prices` reads a price list, `purchase` says what it means for a run, `mixes` what can be bought
together. `mix_run` simulates one mix on drawn `markets`; `search` decides which ones are worth it,
by what none can beat (`bound`). `planning`: `plan` does it all for a `workload`; `report` shows it.
"""
