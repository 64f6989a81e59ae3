"""All I/O of the manager process: sockets, files, certificates, clocks.

`manager_driver.Driver` feeds the reducer and carries out its actions; `manager_app` is what it
serves over HTTP.
"""
