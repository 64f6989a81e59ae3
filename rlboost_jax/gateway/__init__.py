"""The policy behind OpenAI's chat completions and verifiers' generate endpoint.

A *session* is an episode; its *calls* are turns. `gateway_session.py` decides what a call is, with
no socket and no clock; `gateway_app.py` speaks HTTP; a `Backend` (`backend.py`) samples: an engine
in this process (`served.py`), or a run whose environment the harness is (`gateway_environment.py`).
"""
