"""A proxy before an HTTP server that fails as it is told to, request by request."""

import contextlib
import http.client
import http.server
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.message import Message
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Answer:
    """An answer in place of the server's."""

    status: int
    body: bytes = b""


@dataclass(frozen=True)
class Cut:
    """The server's answer, whose connection breaks after so many bytes of its body."""

    after: int


Fault = Answer | Cut | None
SLOW_DOWN = Answer(503, b"<Error><Code>SlowDown</Code><Message>Reduce your rate.</Message></Error>")
BROKEN = Answer(500, b"<Error><Code>InternalError</Code></Error>")
EXPIRED = Answer(
    400,
    b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>",
)
WRONG = Answer(
    403,
    b"<Error><Code>InvalidAccessKeyId</Code><Message>The AWS Access Key Id you provided does not "
    b"exist in our records.</Message></Error>",
)


@dataclass
class FaultyServer:
    """
    Attributes:
        fault: called with a method and a path; what is to go wrong with that request.
        asked: requests so far, "METHOD /path".
    """

    address: str = ""
    fault: Callable[[str, str], Fault] = lambda method, path: None
    asked: list[str] = field(default_factory=list)

    def next_ones(self, faults: list[Fault], method: str = "") -> None:
        """Fail the next requests (with this method) so, and none after them."""
        left = list(faults)

        def fault(asked: str, path: str) -> Fault:
            return left.pop(0) if left and asked.startswith(method) else None

        self.fault = fault


@contextlib.contextmanager
def faulty(behind: str) -> Iterator[FaultyServer]:
    """Serve what the server at the address `behind` has."""
    server = FaultyServer()
    lock = threading.Lock()

    class Forwards(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with lock:
                server.asked.append(f"{self.command} {self.path}")
                fault = server.fault(self.command, self.path)
            if isinstance(fault, Answer):
                self._answer(fault.status, Message(), fault.body)
                return
            other = http.client.HTTPConnection(urlsplit(behind).netloc, timeout=60)
            other.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                other.putheader(name, value)  # the host too: signatures cover it
            other.endheaders(body)
            answer = other.getresponse()
            data = answer.read()
            cut = fault.after if isinstance(fault, Cut) else None
            self._answer(answer.status, answer.headers, data, cut=cut)
            other.close()

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _forward

        def _answer(
            self, status: int, headers: Message, body: bytes, cut: int | None = None
        ) -> None:
            self.send_response(status)
            length = headers.get("Content-Length", str(len(body)))  # of a HEAD without its body
            left_out = ("content-length", "transfer-encoding", "connection", "date", "server")
            for name, value in headers.items():
                if name.lower() not in left_out:
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[:cut])
            if cut is not None:
                self.close_connection = True

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Forwards) as listening:
        listening.daemon_threads = True
        server.address = f"http://127.0.0.1:{listening.server_address[1]}"
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            listening.shutdown()
