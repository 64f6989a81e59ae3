"""What lies on disk and how it is known to be whole.

durable, at_rest, disk_thread, workdir.
"""
