"""Data of the live page and the report of a run in a browser.

`run_view`: `RunView` follows the files of a run, by `file_tail`. `chart_panels`: which charts there
are, in `panel_records`; `page_stream`: what a page is sent. `prometheus`: the route /metrics.
`assets` reads the scripts in static/.
"""
