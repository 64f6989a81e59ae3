"""What servers are called, and who each name belongs to: tokens are filed under names.

A name belongs to one server for as long as tokens under it may be doubted, through restarts of the
manager too: the journal keeps both (`journal.Collected`). Only with both is it certain. A power cut
may have taken the count of names with it, so that another server had the name before the tokens
that the journal still has.
"""

from collections.abc import Container

from rlboost_jax.messages import Hello

REMEMBERED = 65536  # that were noted last: a liar among them is known when it comes again


def identity(hello: Hello) -> str:
    """A server, as far as what it says distinguishes it from another."""
    return f"{hello.nonce}/{hello.instance}"


class Names:
    """Of all servers that are here or were.

    Attributes:
        numbers: how many were made up.
    """

    def __init__(self) -> None:
        self.numbers = 0
        self._owners: dict[str, str] = {}  # name → who that is, or was

    def resume(self, numbers: int) -> None:
        """So many were made up before this manager began."""
        self.numbers = numbers

    def give(self, hello: Hello, taken: Container[str]) -> str:
        """One that nobody else has had; the server's own if that is so."""
        name, who = hello.instance, identity(hello)
        while not name or name in taken or self._owners.get(name, who) != who:
            self.numbers += 1
            name = f"{hello.instance or 'server'}-{self.numbers}"
        self.note(name, who)
        return name

    def note(self, name: str, who: str) -> None:
        """That server goes by this name, or did before this manager began."""
        self._owners.pop(name, None)
        self._owners[name] = who
        if len(self._owners) > REMEMBERED:
            del self._owners[next(iter(self._owners))]

    def owner(self, name: str) -> str | None:
        """Who has it or had it; None where that is not known."""
        return self._owners.get(name)
