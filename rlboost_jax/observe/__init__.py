"""Observation of a run: metrics, events, a live view, a page, a report.

`metrics`: a row for each step, and what its keys mean. `events_file`: what happened to the fleet.
`tracker`: where rows go; `trackers` are those of other packages, each an `isolated_tracker`.
`console` and `live_view`: the terminal. `html_report` and `page`: a browser. `diagnostics` and
`alerts`: when a person should look. `span_recorder`, `profile` and `chrome_trace`: one step in
detail.
"""
