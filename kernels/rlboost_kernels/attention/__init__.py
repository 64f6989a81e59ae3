"""Paged attention: `api` chooses and checks, `reference` defines it, the others compute it fast."""
