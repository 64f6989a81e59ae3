"""Adapters for environments of other packages.

One module a package, imported by the name that `environment.name` has; the package itself is
imported with the first environment that is made. What repeats for an example and a seed is shown
by tests against the packages (`make test-adapters`); what does not is refused, or named in an
option that allows it.
"""
