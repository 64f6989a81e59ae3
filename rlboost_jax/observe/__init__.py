"""What a run shows: numbers, events, a live view, a page, a report.

`metrics`: a row for each step, and what its keys mean. `events`: what happened to the fleet.
`tracker`: where rows go; `trackers` are those of other packages, each an `isolated_tracker`.
`console` and `live_view`: the terminal. `report` and `page`: a browser. `diagnostics` and `alerts`:
when a person should look. `spans`, `profile` and `trace`: one step in detail.
"""
