"""Servers as pods of a Kubernetes cluster: `fleet.provider=kubernetes`."""
