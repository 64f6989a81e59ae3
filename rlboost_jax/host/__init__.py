"""What a process has to know of the host it runs on, and of others there.

busy, exhaustion, huge_pages, private_paths, processes.
"""
