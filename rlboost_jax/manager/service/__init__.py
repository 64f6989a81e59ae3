"""All I/O of the manager process: sockets, files, certificates, clocks.

`driver.Driver` feeds the reducer and carries out its actions; `app` is what it serves over HTTP.
"""
