"""Which machines to buy: `rlboost plan`.

`price_list` reads a price list, `purchase` says what it means for a run, `mixes` what can be bought
together. `mix_run` simulates one mix on drawn `mix_market`; `search` decides which ones are worth
it, by what none can beat (`mix_bound`). `planning`: `plan` does it all for a `workload`;
`plan_report` shows it.
"""
