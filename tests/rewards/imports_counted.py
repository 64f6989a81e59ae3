"""A reward function that counts what its own process imports: all of it costs every call."""

import os
import sys

IMPORTED = []


class _Watch:
    def find_spec(self, name, path=None, target=None):
        IMPORTED.append((os.getpid(), name))


sys.meta_path.insert(0, _Watch())


def late(prompts, completions):
    names = [name for process, name in IMPORTED if process == os.getpid()]
    assert not names, names
    return [1.0]
