"""A store like Google Cloud Storage, as much of its XML API as obstore's client uses.

Source: cloud.google.com/storage/docs/xml-api, "Put Object", "Multipart upload", "List objects".
"""

import http.server
import itertools
import re
import threading
from datetime import UTC, datetime
from email.utils import format_datetime
from hashlib import md5
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

TOKEN = "ya29.of-a-service-account"
PAGE = 50  # names in one answer to a list


class GcsFake(http.server.ThreadingHTTPServer):
    """Buckets come into being with their first object. Whoever has TOKEN may do everything."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.lock = threading.Lock()
        self.objects: dict[str, tuple[bytes, int]] = {}  # by "bucket/name": bytes and generation
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.numbers = itertools.count(1)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def put(self, name: str, data: bytes, only_new: bool) -> int | None:
        """Returns the generation; None where there is one already, and that was not to be."""
        with self.lock:
            if only_new and name in self.objects:
                return None
            self.objects[name] = data, next(self.numbers)
            return self.objects[name][1]


class _Requests(http.server.BaseHTTPRequestHandler):
    server: GcsFake
    protocol_version = "HTTP/1.1"

    def _asked(self) -> tuple[str, dict[str, str], bytes] | None:
        """Name, parameters and body of a request; None where it was refused."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = urlsplit(self.path)
        query = {key: value[0] for key, value in parse_qs(parts.query, True).items()}
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._answer(401, _error("AuthenticationRequired"))
            return None
        return unquote(parts.path).lstrip("/"), query, body

    def do_PUT(self) -> None:
        if (asked := self._asked()) is None:
            return
        name, query, body = asked
        if (upload := query.get("uploadId")) is not None:
            self.server.uploads[upload][int(query["partNumber"])] = body
            self._answer(200, etag=body)
            return
        only_new = self.headers.get("x-goog-if-generation-match") == "0"
        generation = self.server.put(name, body, only_new)
        if generation is None:
            self._answer(412, _error("PreconditionFailed"))
        else:
            self._answer(200, etag=body, generation=generation)

    def do_POST(self) -> None:
        if (asked := self._asked()) is None:
            return
        name, query, body = asked
        if "uploads" in query:
            upload = f"upload-{next(self.server.numbers)}"
            self.server.uploads[upload] = {}
            tag = f"<UploadId>{upload}</UploadId>"
            self._answer(200, _xml("InitiateMultipartUploadResult", tag))
            return
        parts = self.server.uploads.pop(query["uploadId"])
        order = [int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", body)]
        whole = b"".join(parts[number] for number in order)
        generation = self.server.put(name, whole, only_new=False)
        tag = f"<ETag>{_tag(whole)}</ETag>"
        self._answer(200, _xml("CompleteMultipartUploadResult", tag), generation=generation)

    def do_GET(self) -> None:
        if (asked := self._asked()) is None:
            return
        name, query, _ = asked
        if "/" not in name:
            self._list(name, query)
        elif name not in self.server.objects:
            self._answer(404, _error("NoSuchKey"))
        else:
            data, generation = self.server.objects[name]
            asked_range = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            more = {}
            if asked_range:
                begin, end = int(asked_range[1]), int(asked_range[2] or len(data) - 1) + 1
                more["Content-Range"] = f"bytes {begin}-{min(end, len(data)) - 1}/{len(data)}"
                part = data[begin:end]
                self._answer(206, part, etag=data, generation=generation, **more)
            else:
                self._answer(200, data, etag=data, generation=generation)

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        if (asked := self._asked()) is None:
            return
        name, query, _ = asked
        if (upload := query.get("uploadId")) is not None:
            self.server.uploads.pop(upload, None)
            self._answer(204)
        else:
            found = self.server.objects.pop(name, None)
            self._answer(204 if found else 404, b"" if found else _error("NoSuchKey"))

    def _list(self, bucket: str, query: dict[str, str]) -> None:
        begin, after = f"{bucket}/{query.get('prefix', '')}", query.get("continuation-token", "")
        names = sorted(n for n in self.server.objects if n.startswith(begin) and n > after)
        shown, left = names[:PAGE], names[PAGE:]
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        said = [
            f"<Contents><Key>{escape(name.partition('/')[2])}</Key><Size>{len(data)}</Size>"
            f"<LastModified>{now}</LastModified><ETag>{_tag(data)}</ETag></Contents>"
            for name in shown
            for data, _ in [self.server.objects[name]]
        ]
        if left:
            said.append(f"<NextContinuationToken>{escape(shown[-1])}</NextContinuationToken>")
        self._answer(200, _xml("ListBucketResult", *said))

    def _answer(
        self,
        status: int,
        body: bytes = b"",
        *,
        etag: bytes | None = None,
        generation: int | None = None,
        **headers: str,
    ) -> None:
        self.send_response(status)
        if etag is not None:
            headers["ETag"] = _tag(etag)
            headers["Last-Modified"] = format_datetime(datetime.now(UTC), usegmt=True)
        if generation is not None:
            headers["x-goog-generation"] = str(generation)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def _tag(data: bytes) -> str:
    return f'"{md5(data, usedforsecurity=False).hexdigest()}"'


def _xml(name: str, *inner: str) -> bytes:
    return f"<?xml version='1.0'?><{name}>{''.join(inner)}</{name}>".encode()


def _error(code: str) -> bytes:
    return _xml("Error", f"<Code>{code}</Code><Message>of a fake</Message>")
