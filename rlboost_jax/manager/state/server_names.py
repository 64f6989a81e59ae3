"""Names of servers, and the server each name belongs to: tokens are filed under names.

A name belongs to one server for as long as tokens under it may be doubted, through restarts of the
manager too: the journal keeps both (`journal_entries.Collected`). Only with both is it certain. A
power cut may have taken the count of names with it, so that another server had the name before the
tokens that the journal still has.
"""

from collections.abc import Container

from rlboost_jax.messages import Hello

REMEMBERED = 65536  # that were noted last: a liar among them is known when it comes again


def identity(hello: Hello) -> str:
    """Identity of a server, as far as its `Hello` distinguishes it from others."""
    return f"{hello.nonce}/{hello.instance}"


class ServerNames:
    """Names of all servers, past and present, and their owners.

    Attributes:
        numbers: of names that were generated.
    """

    def __init__(self) -> None:
        self.numbers = 0
        self._owners: dict[str, str] = {}  # name → who that is, or was

    def resume(self, numbers: int) -> None:
        """Set how many names earlier managers have generated."""
        self.numbers = numbers

    def give(self, hello: Hello, taken: Container[str]) -> str:
        """Name for a server that no other has had; its own if that is free."""
        name, who = hello.instance, identity(hello)
        while not name or name in taken or self._owners.get(name, who) != who:
            self.numbers += 1
            name = f"{hello.instance or 'server'}-{self.numbers}"
        self.note(name, who)
        return name

    def note(self, name: str, who: str) -> None:
        """Record that a server has this name, or had it before this manager began."""
        self._owners.pop(name, None)
        self._owners[name] = who
        if len(self._owners) > REMEMBERED:
            del self._owners[next(iter(self._owners))]

    def owner(self, name: str) -> str | None:
        """Identity of the server that has or had a name; None if unknown."""
        return self._owners.get(name)
