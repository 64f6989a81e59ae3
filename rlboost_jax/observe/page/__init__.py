"""A run in a browser: what the live page and the report draw, as data.

`view`: `RunView` follows the files of a run, by `tail`. `panels`: which charts there are; `stream`:
what a page is sent. `prometheus`: the route /metrics. `assets` reads the scripts in static/.
"""
