"""A second decoder of the messages of a transfer, written from ../transfer.md alone."""

import zlib


class Refused(Exception):
    """The bytes break a rule of the page."""


class Reader:
    """Takes fields off the front of a body."""

    def __init__(self, data):
        self.data = data

    def take(self, count):
        if count > len(self.data):
            raise Refused("truncated")
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def uint(self, size):
        return int.from_bytes(self.take(size), "big")

    def text(self):
        try:
            return self.take(self.uint(2)).decode("utf-8")
        except UnicodeDecodeError:
            raise Refused("not UTF-8") from None

    def path(self):
        path = self.text()
        names = path.split("/")
        if len(path.encode()) > 4096 or len(names) > 128:
            raise Refused("path")
        for name in names:
            is_unfinished = name.encode().lower().endswith(b".anabranch-part")
            if name in ("", ".", "..") or "\0" in name or len(name.encode()) > 255 or is_unfinished:
                raise Refused("name")
        return path


def hello(body):
    if body.take(4) != b"ANBT":
        raise Refused("greeting")
    message = {"version": body.uint(2)}
    flags = body.uint(1) if body.data else 0
    message |= {"asks": bool(flags & 1), "eager": bool(flags & 2), "extended": bool(flags & 4)}
    body.data = b""
    return message


def entry(body):
    kind = body.uint(1)
    message = {"path": body.path()}
    if kind == 2:
        return message | {"link": body.text()}
    if kind not in (0, 1):
        raise Refused("kind of entry")
    message["mode"] = body.uint(2) & 0o777
    flags = body.uint(1)
    if kind == 1:
        message["is_directory"] = True
        flags &= 2
    if flags & 1:
        message["size"] = body.uint(8)
    if flags & 2:
        message["seconds"] = int.from_bytes(body.take(8), "big", signed=True)
        message["nanoseconds"] = body.uint(4)
    if flags & 4:
        message["data"] = body.uint(8)
    return message


def attribute(body):
    name = body.text()
    if not name.startswith("user.") or len(name.encode()) > 255 or "\0" in name:
        raise Refused("name of an attribute")
    return {"name": name, "value": body.take(body.uint(2))}


def packed(body):
    """The frames in a compressed part of a list."""
    stream = zlib.decompressobj(-15)
    try:
        frames = stream.decompress(body.data, (64 << 10) + 1)
    except zlib.error:
        raise Refused("not compressed") from None
    if not stream.eof or len(frames) > 64 << 10:
        raise Refused("too long")
    body.data, rest, kinds = b"", Reader(frames), []
    while rest.data:
        kinds.append(rest.uint(1))
        length = rest.uint(4)
        if kinds[-1] not in (0x02, 0x06, 0x09, 0x0A, 0x0C) or length > 16384:
            raise Refused("not a message of a list")
        rest.take(length)
    return {"kinds": kinds}


def ask(body):
    request, options = body.uint(1), body.uint(1)
    if request not in (1, 2, 3):
        raise Refused("request")
    taken = {"taken": body.uint(1)} if request == 3 else {}
    count = body.uint(2)
    if taken.get("taken", 0) > 3 or count > (256 if request == 2 else 1):
        raise Refused("number")
    return {"request": request, "options": options, "paths": [body.path() for _ in range(count)]} | taken


def fetch(body):
    message = {"entry": body.uint(4), "first": body.uint(8), "count": body.uint(8), "last": body.uint(1)}
    held = len(body.data) // 32
    if len(body.data) % 32 or held > min(64, message["count"]):
        raise Refused("number of chaining values")
    return message | {"held": [body.take(32) for _ in range(held)]}


def incomplete(body):
    message = {"count": body.uint(8), "failed_here": body.uint(8), "files": body.text()}
    return message | {"again": body.uint(8)} if body.data else message


def data(least):
    def decode(body):
        message = {"hash": body.take(32), "data": body.data}
        if len(message["data"]) < least:
            raise Refused("no data")
        body.data = b""
        return message

    return decode


KINDS = {
    0x01: hello,
    0x02: entry,
    0x03: lambda body: {},
    0x04: lambda body: {"removed": body.uint(8), "updated": body.uint(8)} if body.data else {},
    0x05: lambda body: {"reason": body.text()},
    0x06: lambda body: {"missed": body.uint(1), "path": body.text(), "reason": body.text()},
    0x07: incomplete,
    0x08: ask,
    0x09: attribute,
    0x0A: lambda body: {"first": body.uint(4)},
    0x0B: packed,
    0x0C: lambda body: {"path": body.text(), "reason": body.text()},
    0x0D: lambda body: {"entry": body.uint(4)},
    0x0E: lambda body: {"note": body.text()},
    0x0F: lambda body: {"directories": body.uint(8)},
    0x10: fetch,
    0x12: lambda body: {"entry": body.uint(4)},
    0x13: lambda body: {},
    0x14: lambda body: {"most": body.uint(4)},
    0x20: data(0),
    0x21: lambda body: {},
    0x22: lambda body: {"length": body.uint(8), "hash": body.take(32)},
    0x23: lambda body: {"reason": body.text()},
    0x26: data(1),
    0x27: lambda body: {"length": body.uint(4)},
    0x28: lambda body: {"entry": body.uint(4)} | data(1)(body) if body.data else {},
}


def decode_message(message):
    """Decodes a kind and the body of its frame."""
    if not message or message[0] not in KINDS:
        raise Refused("kind")
    body = Reader(message[1:])
    decoded = KINDS[message[0]](body)
    if body.data:
        raise Refused("a body that is too long")
    return decoded


# What the vectors stand for. Those that are not here have no fields, or hashes.
MEANINGS = {
    "hello": {"version": 4, "asks": False, "eager": False, "extended": False},
    "hello of a client": {"version": 4, "asks": True, "eager": False, "extended": False},
    "eager hello": {"version": 4, "asks": False, "eager": True, "extended": False},
    "extended hello": {"version": 4, "asks": False, "eager": False, "extended": True},
    "file": {"path": "a/é", "mode": 0o640, "size": 5, "seconds": -5, "nanoseconds": 7},
    "sparse": {"path": "s", "mode": 0o644, "size": 1 << 30, "data": 4096},
    "stream": {"path": "-", "mode": 0o644},
    "directory": {"path": "d", "mode": 0o755, "is_directory": True, "seconds": -5, "nanoseconds": 7},
    "link": {"path": "l", "link": "d/é"},
    "attribute": {"name": "user.tag", "value": b"red"},
    "hard link": {"first": 3},
    "packed": {"kinds": [2, 2]},
    "left out": {"missed": 1, "path": "s", "reason": "a socket"},
    "done of a copy": {"removed": 2, "updated": 1},
    "abort": {"reason": "disk full"},
    "note": {"note": "a note"},
    "skip": {"entry": 3},
    "unsynced": {"directories": 2},
    "missing": {"path": "s", "reason": "its name is taken"},
    "incomplete": {"count": 2, "failed_here": 1, "files": "a: no"},
    "incomplete for now": {"count": 2, "failed_here": 1, "files": "a: no", "again": 1},
    "ls": {"request": 1, "options": 1, "paths": ["a/b"]},
    "get": {"request": 2, "options": 2, "paths": ["a", "b/c"]},
    "put": {"request": 3, "options": 0, "taken": 3, "paths": []},
    "sync": {"request": 3, "options": 3, "taken": 1, "paths": ["a"]},
    "fetch": {"entry": 1, "first": 64, "count": 2, "last": 1, "held": [b"\xaa" * 32]},
    "hash": {"entry": 3},
    "begin": {"most": 16 << 10},
    "zeros": {"length": 8 << 20},
    "failed": {"reason": "no"},
}


def check(vectors, same):
    """Compares the published vectors with their meanings."""
    lines = [line.split(":") for line in vectors.splitlines() if not line.startswith("#")]
    for name, digits in lines:
        frame = bytes.fromhex(digits)
        same(f"length of {name}", int.from_bytes(frame[1:5], "big"), len(frame) - 5)
        decoded = decode_message(frame[:1] + frame[5:])
        same(name, decoded, MEANINGS.get(name, decoded))
    same("meanings without a vector", MEANINGS.keys() - {name for name, _ in lines}, set())
