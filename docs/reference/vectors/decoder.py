#!/usr/bin/env python3
"""A second decoder of the protocol, written from ../protocol.md alone; transfer.py is that of the transfer's messages.

It shares no code with the Rust implementation. `python3 decoder.py` checks it against the test vectors beside this
file. With `--verdicts` it reads lines of `KIND HEX VERDICT` from standard input, where VERDICT is `ok` or `refused`,
and reports each line on which it disagrees. Every difference is a fault of one of the two, or of the page.
"""

import ipaddress
import json
import pathlib
import sys

import transfer
from primitives import Noise, aes_gcm_open, aes_gcm_seal, blake3_derive, blake3_keyed, x25519, x25519_public

VARINT_MAX = 2**62 - 1
HERE = pathlib.Path(__file__).resolve().parent


class Refused(Exception):
    """The bytes break a rule of the page."""


class Reader:
    """Takes fields off the front of some bytes."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def left(self):
        return len(self.data) - self.at

    def take(self, count):
        if count > self.left():
            raise Refused("truncated")
        self.at += count
        return self.data[self.at - count : self.at]

    def uint(self, size):
        return int.from_bytes(self.take(size), "big")

    def varint(self, least=0, most=VARINT_MAX):
        first = self.uint(1)
        rest = self.take((1 << (first >> 6)) - 1)
        value = int.from_bytes(bytes([first & 0x3F]) + rest, "big")
        if not least <= value <= most:
            raise Refused("out of range")
        return value

    def path(self):
        return self.varint(0, 2**32 - 1)

    def nonzero(self, size):
        value = self.take(size)
        if not any(value):
            raise Refused("zero")
        return value

    def address(self):
        family = self.uint(1)
        if family not in (4, 6):
            raise Refused("address family")
        ip = ipaddress.ip_address(self.take(4 if family == 4 else 16))
        port = self.uint(2)
        return f"{ip}:{port}" if family == 4 else f"[{ip}]:{port}"


# --- header ---------------------------------------------------------------------------------------------------------

KINDS = {1: "init", 2: "init_ack", 3: "cookie", 4: "data", 5: "reset", 6: "relay_challenge", 7: "relay_response"}


def checksum(header):
    """RFC 1071, with the checksum's own bytes as zero."""
    total = sum(int.from_bytes(header[at : at + 2], "big") for at in range(0, 16, 2) if at != 2)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def decode_header(datagram):
    reader = Reader(datagram)
    header = reader.take(16)
    if int.from_bytes(header[2:4], "big") != checksum(header):
        raise Refused("checksum")
    if header[0] >> 4 not in KINDS or header[0] & 7:
        raise Refused("kind or reserved bits")
    return {
        "kind": KINDS[header[0] >> 4],
        "key_phase": bool(header[0] >> 3 & 1),
        "tos": header[1] >> 4,
        "hop_limit": header[1] & 15,
        "pid": header[4:12].hex(),
        "fsn": int.from_bytes(header[12:16], "big"),
    }


def associated_data(header, path):
    return bytes([header[0], header[1] & 0xF0]) + path.to_bytes(4, "big") + header[12:16]


def after_hop(header, pid):
    changed = bytes([header[0], header[1] - 1, 0, 0]) + pid + header[12:16]
    return changed[:2] + checksum(changed).to_bytes(2, "big") + changed[4:]


def expand_fsn(truncated, expected):
    """Of all numbers with these low bits, the one closest to the expected one."""
    base = expected >> 32 << 32
    candidates = [base + shift + truncated for shift in (-(2**32), 0, 2**32)]
    return min((number for number in candidates if number >= 0), key=lambda number: abs(number - expected))


# --- frames ---------------------------------------------------------------------------------------------------------


def decode_frames(packet):
    reader, frames = Reader(packet), []
    if not packet:
        raise Refused("no frame")
    while reader.left():
        if len(frames) == 256:
            raise Refused("too many frames")
        frames.append(frame(reader))
    return frames


def data(reader, has_len):
    return reader.take(reader.varint() if has_len else reader.left()).hex()


def frame(reader):
    kind = reader.uint(1)
    if kind in (0x02, 0x03, 0x06, 0x07):
        return ack(reader, kind)
    if 0x08 <= kind <= 0x0F:
        return stream(reader, kind)
    if 0x30 <= kind <= 0x33:
        return {"type": "datagram", **datagram_head(reader, kind), "data": data(reader, kind & 1)}
    if 0x34 <= kind <= 0x37:
        return marked(reader, kind)
    if kind in (0x38, 0x39):
        return parity(reader, kind)
    if kind in FRAMES:
        name, fields = FRAMES[kind]
        return {"type": name, **{key: read(reader) for key, read in fields.items()}}
    raise Refused("unknown frame")


def zeros(reader):
    count = reader.uint(2)
    if any(reader.take(count)):
        raise Refused("padding is not zero")
    return count


def use(reader):
    value = reader.uint(1)
    if value > 4:
        raise Refused("use of a path")
    return ("normal", "backup", "standby", "metered", "overflow")[value]


def ack_path(reader):
    value = reader.varint(0, 2**32)
    return value - 1 if value else None


def reason(reader):
    try:
        return reader.take(reader.uint(1)).decode()
    except UnicodeDecodeError as error:
        raise Refused("reason") from error


def octets(size):
    return lambda reader: reader.take(size).hex()


def nonzero(size):
    return lambda reader: reader.nonzero(size).hex()


NUMBER, PATH, ADDRESS = Reader.varint, Reader.path, Reader.address
FRAMES = {
    0x00: ("padding", {"len": zeros}),
    0x01: ("ping", {}),
    0x04: ("reset_stream", {"stream": NUMBER, "code": NUMBER, "final_size": NUMBER}),
    0x05: ("stop_sending", {"stream": NUMBER, "code": NUMBER}),
    0x10: ("max_data", {"limit": NUMBER}),
    0x11: ("max_stream_data", {"stream": NUMBER, "limit": NUMBER, "received": NUMBER}),
    0x12: ("max_streams", {"limit": NUMBER}),
    0x13: ("max_path_data", {"path": PATH, "limit": NUMBER}),
    0x14: ("key_exchange", {"number": lambda reader: reader.varint(1), "key": octets(32)}),
    0x15: ("max_path_rate", {"path": PATH, "sequence": NUMBER, "bits": NUMBER}),
    0x1A: ("path_challenge", {"token": octets(8)}),
    0x1B: ("path_response", {"token": octets(8)}),
    0x1C: ("close", {"code": NUMBER, "reason": reason}),
    0x20: ("new_pid", {"path": PATH, "pid": nonzero(8), "reset_token": nonzero(16)}),
    0x21: ("path_abandon", {"path": PATH, "reason": NUMBER}),
    0x22: ("path_status", {"path": PATH, "sequence": NUMBER, "use": use}),
    0x23: ("ack_path", {"sequence": NUMBER, "path": ack_path}),
    0x24: ("add_address", {"id": NUMBER, "address": ADDRESS}),
    0x25: ("remove_address", {"id": NUMBER}),
    0x26: ("observed_address", {"path": PATH, "address": ADDRESS}),
    0x27: (
        "report",
        {"path": PATH, "bytes": NUMBER, "packets": NUMBER, "highest_fsn": NUMBER, "highest_tsn": NUMBER},
    ),
    0x28: ("shutdown", {}),
    0x29: ("shutdown_ack", {}),
}


def ack(reader, kind):
    result = {"type": "ack", "path": reader.path()}
    highest = reader.varint()
    result["delay_us"] = reader.varint()
    if kind >= 0x06:
        result["arrived_us"] = reader.varint(0, 2**30 - 1)
    further = reader.varint(0, 63)
    ranges, end = [], highest
    for index in range(further + 1):
        if index:
            # Below the last range and a gap of at least one number.
            end = ranges[-1][0] - 1 - (reader.varint() + 1)
        start = end - reader.varint()
        if start < 0 or end < 0:
            raise Refused("a range below 0")
        ranges.append([start, end])
    result["ranges"] = ranges
    if kind & 1:
        result["ecn"] = {key: reader.varint() for key in ("ect0", "ect1", "ce")}
    return result


def stream(reader, kind):
    result = {"type": "stream", "stream": reader.varint()}
    result["offset"] = reader.varint() if kind & 4 else 0
    result["fin"] = bool(kind & 1)
    result["data"] = data(reader, kind & 2)
    if result["offset"] + len(result["data"]) // 2 > VARINT_MAX:
        raise Refused("beyond the largest offset")
    return result


def datagram_head(reader, kind):
    category = reader.uint(1)
    if category > 15:
        raise Refused("class")
    return {"class": category, "flow": reader.uint(4) if kind & 2 else 0}


def marked(reader, kind):
    byte = reader.uint(1)
    marks = byte & 0xF0
    if not marks & 0x50 or marks & 0x80 or marks & 0x30 == 0x20:
        raise Refused("marks")
    result = {"type": "marked", "class": byte & 15, "flow": reader.uint(4) if kind & 2 else 0}
    if marks & 0x10:
        result["number"], result["coded"] = reader.varint(), bool(marks & 0x20)
    if marks & 0x40:
        result["place"] = reader.varint(0, 2**48 - 2)
    result["data"] = data(reader, kind & 1)
    return result


def parity(reader, kind):
    result = {"type": "parity", "class": datagram_head(reader, 0)["class"], "first": reader.varint()}
    result["count"], result["parities"], result["index"] = (reader.uint(1) for _ in range(3))
    if not 1 <= result["count"] <= 32 or not 1 <= result["parities"] <= 32:
        raise Refused("size of a block")
    if result["index"] >= result["parities"] or result["first"] > VARINT_MAX - 32:
        raise Refused("a piece beyond the block")
    result["head"], result["data"] = reader.take(12).hex(), data(reader, kind & 1)
    if len(result["data"]) // 2 % 2:
        raise Refused("odd length")
    return result


# --- parameters -----------------------------------------------------------------------------------------------------

PARAMS = {
    3: ("initial_max_data", 0, VARINT_MAX),
    4: ("initial_max_stream_data", 0, VARINT_MAX),
    5: ("initial_max_streams", 0, VARINT_MAX),
    6: ("max_paths", 1, 64),
    7: ("max_udp_payload", 1200, 65_535),
    8: ("max_datagram", 0, 65_535),
    9: ("idle_timeout_ms", 0, 2**32 - 1),
    10: ("max_ack_delay_us", 0, 16_384_000),
    11: ("max_block", 0, 32),
    12: ("ordered_classes", 0, 65_535),
    13: ("arrival_times", 0, 1),
    14: ("path_rates", 0, 1),
}


def decode_params(message):
    reader, result, last = Reader(message), {}, 0
    while reader.left():
        number = reader.varint()
        if number <= last:
            raise Refused("ids ascend")
        last = number
        value = Reader(reader.take(reader.varint()))
        if number == 1:
            result["pid"] = value.nonzero(8).hex()
        elif number == 2:
            result["reset_token"] = value.nonzero(16).hex()
        elif number in PARAMS:
            name, least, most = PARAMS[number]
            result[name] = value.varint(least, most)
        else:
            continue
        if value.left():
            raise Refused("bytes behind a value")
    required = {"pid", "reset_token"} | {name for number, (name, _, _) in PARAMS.items() if number <= 10}
    if not required <= result.keys():
        raise Refused("a parameter is missing")
    return result


# --- vectors --------------------------------------------------------------------------------------------------------

DIFFERENCES = []


def same(what, ours, theirs):
    if ours != theirs:
        DIFFERENCES.append(f"{what}\n  here    {ours}\n  there   {theirs}")


def refuses(what, decode, message):
    try:
        DIFFERENCES.append(f"{what}: taken for {decode(message)}")
    except Refused:
        pass


def unhex(text):
    return bytes.fromhex(text)


def plain(value):
    """Numbers in decimal text are numbers; a missing number of a mark is none."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    if isinstance(value, str) and len(value) > 15 and value.isdigit() and int(value) >= 2**53:
        return int(value)
    return value


def check_wire(vectors):
    for vector in plain(vectors["varint"]):
        same("varint", Reader(unhex(vector["bytes"])).varint(), vector["value"])
    for vector in vectors["header"]:
        header = unhex(vector["bytes"])
        decoded = decode_header(header)
        same(vector["name"], decoded, {key: vector[key] for key in decoded})
        same(vector["name"], associated_data(header, vector["path"]).hex(), vector["associated_data"])
        if "after_hop" in vector:
            same(vector["name"], after_hop(header, unhex(vector["next_pid"])).hex(), vector["after_hop"])
    for vector in vectors["expand_fsn"]:
        same("expand_fsn", expand_fsn(vector["truncated"], vector["expected_next"]), vector["fsn"])
    for vector in vectors["packet"]:
        frames = [{key: entry for key, entry in given.items()} for given in vector["frames"]]
        same(vector["name"], decode_frames(unhex(vector["bytes"])), [with_numbers(given) for given in frames])
    for vector in vectors["params"]:
        given = {key: entry for key, entry in vector.items() if key not in ("name", "bytes", "decode_only")}
        same(vector["name"], decode_params(unhex(vector["bytes"])), given)
    check_parity(vectors["parity"])
    decoders = {"header": decode_header, "packet": decode_frames, "params": decode_params}
    for section, decode in decoders.items():
        for vector in vectors["refused"][section]:
            refuses(f"{section}: {vector['why']}", decode, unhex(vector["bytes"]))


def with_numbers(given):
    """Hexadecimal text stays text; only the fields that are numbers become numbers."""
    texts = ("type", "data", "head", "token", "pid", "reset_token", "key", "reason", "use", "address")
    return {key: entry if key in texts else plain(entry) for key, entry in given.items()}


def check_parity(vectors):
    """Of a single piece: the exclusive or of all units. Several pieces need a Reed-Solomon code."""
    for vector in (vector for vector in vectors if len(vector["pieces"]) == 1):
        units = []
        for datagram in vector["datagrams"]:
            text, place = datagram["data"].encode(), datagram.get("place", -1) + 1
            head = datagram["flow"].to_bytes(4, "big") + len(text).to_bytes(2, "big") + place.to_bytes(6, "big")
            units.append((head, text))
        longest = max(len(text) for _, text in units)
        piece = bytearray(12 + longest + longest % 2)
        for head, text in units:
            for at, byte in enumerate(head + text):
                piece[at] ^= byte
        same(vector["name"], f"{piece[:12].hex()} {piece[12:].hex()}", vector["pieces"][0])


# --- handshake and packet protection ----------------------------------------------------------------------------------


def derive(context, message, size=32):
    return blake3_derive(context, message, size)


def keyed(key, message):
    return blake3_keyed(key, message)[:16]


def check_secure(vectors):
    check_text(vectors["text"])
    for vector in vectors["handshake"]:
        check_handshake(vector)
    for vector in vectors["packet"]:
        secret = unhex(vector["secret"])
        for _ in range(vector["phase"]):
            secret = derive("anabranch 2026 next key phase", secret)
        check_sealed(vector, secret)
    check_fresh(vectors["fresh"])
    reset = vectors["reset"]
    token = keyed(derive("anabranch 2026 reset token", unhex(reset["key"])), unhex(reset["pid"]))
    same("reset token", token.hex(), reset["token"])


def check_sealed(vector, secret):
    material = derive("anabranch 2026 packet key", secret, 28)
    key, mask = material[:16], material[16:]
    number = vector["path"].to_bytes(4, "big") + vector["fsn"].to_bytes(8, "big")
    nonce = bytes(a ^ b for a, b in zip(number, mask))
    sealed = aes_gcm_seal(key, nonce, unhex(vector["frames"]), unhex(vector["associated_data"]))
    same("sealed packet", sealed.hex(), vector["sealed"])


def check_fresh(vector):
    offered, answered = unhex(vector["offered_secret"]), unhex(vector["answered_secret"])
    a, b = x25519_public(offered), x25519_public(answered)
    same("public keys", [a.hex(), b.hex()], [vector["offered"], vector["answered"]])
    shared = x25519(offered, b)
    same("shared secret", shared, x25519(answered, a))
    fresh = derive("anabranch 2026 fresh secret", shared + a + b)
    same("fresh secret", fresh.hex(), vector["fresh"])
    without = derive("anabranch 2026 next key phase", unhex(vector["secret"]))
    mixed = derive("anabranch 2026 fresh key phase", without + fresh)
    same("mixed secret", mixed.hex(), vector["secret_of_phase_1"])
    check_sealed(vector, mixed)


def base32(data):
    digits = "abcdefghijklmnopqrstuvwxyz234567"
    bits = "".join(f"{byte:08b}" for byte in data)
    bits += "0" * (-len(bits) % 5)
    return "".join(digits[int(bits[at : at + 5], 2)] for at in range(0, len(bits), 5))


def text_form(prefix, data, checksum_len):
    name = prefix.encode()
    checksum_of = derive("anabranch 2026 text checksum", len(name).to_bytes(8, "little") + name + data)
    return prefix + base32(data + checksum_of[:checksum_len])


def check_text(vector):
    secret = unhex(vector["secret_key"])
    public = x25519_public(secret)
    same("public key", public.hex(), vector["public_key"])
    same("public key's text", text_form("ab1", public, 3), vector["public_key_text"])
    same("secret key's line", text_form("ab-secret-1", secret, 3), vector["secret_key_line"])
    address = bytes([4, 192, 0, 2, 1]) + (4000).to_bytes(2, "big")
    other = bytes([6]) + ipaddress.ip_address("2001:db8::1").packed + (4001).to_bytes(2, "big")
    ticket = public + (7).to_bytes(8, "big") + bytes([5] * 16) + (1_800_000_000).to_bytes(8, "big")
    ticket += bytes([2]) + address + other + bytes([1]) + unhex(vector["ticket_relay"]) + bytes([1]) + address
    same("ticket", text_form("anabranch1", ticket, 4), vector["ticket"])


def padded(message, size):
    return message + bytes(size - len(message))


def check_handshake(vector):
    client, server = unhex(vector["client_secret"]), unhex(vector["server_secret"])
    share, ticket_secret = vector["share"], vector["ticket_secret"]
    psk = bytes(32)
    if share is not None:
        psk = derive("anabranch 2026 ticket pre-shared key", share.to_bytes(8, "big") + unhex(ticket_secret))
    same("pre-shared key", psk.hex(), vector["psk"])

    def with_length(parameters):
        return len(parameters).to_bytes(2, "big") + parameters

    noise = Noise(b"Noise_IKpsk2_25519_AESGCM_SHA256", b"anabranch\x01", x25519_public(server))
    credential = bytes(9) if share is None else b"\x01" + share.to_bytes(8, "big")
    first = padded(credential + with_length(unhex(vector["client_params"])), 267)
    message = noise.write_first(unhex(vector["client_ephemeral"]), client, first)
    init = b"\x01" + unhex(vector["reply_pid"]) + message
    mac1 = keyed(derive("anabranch 2026 mac1", x25519_public(server)), init)
    init += mac1
    same("Init without a cookie", init.hex(), vector["init_without_cookie"])

    cookie_body = unhex(vector["cookie_body"])
    seal = derive("anabranch 2026 cookie seal", x25519_public(server) + mac1 + cookie_body[1:17])
    cookie = aes_gcm_open(seal, bytes(12), cookie_body[17:], cookie_body[:1])
    if cookie is None:
        DIFFERENCES.append("the cookie does not open")
        return
    mac2 = keyed(cookie + bytes(16), mac1)
    same("Init with a cookie", (init + mac2).hex(), vector["init_with_cookie"])

    second = padded(b"\x00" + with_length(unhex(vector["server_params"])), 259)
    answer = b"\x01" + noise.write_second(unhex(vector["server_ephemeral"]), psk, second)
    answer += keyed(derive("anabranch 2026 mac1", x25519_public(client)), answer)
    same("InitAck", answer.hex(), vector["init_ack"])
    to_server, to_client = noise.split()
    same("keys", [to_server.hex(), to_client.hex()], [vector["client_to_server"], vector["server_to_client"]])
    same("session id", noise.hash.hex(), vector["id"])


# --- relays -----------------------------------------------------------------------------------------------------------


def check_relay(vectors):
    guest = vectors["guest"]
    secret = derive("anabranch 2026 guest secret", unhex(guest["ticket_secret"]) + unhex(guest["relay"]))
    same("guest's share", derive("anabranch 2026 guest share", secret)[:8].hex(), guest["share"])
    same("guest's hash", derive("anabranch 2026 guest hash", secret)[:16].hex(), guest["hash"])
    challenge = vectors["challenge"]
    datagram = unhex(challenge["pid_0_to_key_50"])
    same("kind of a question", decode_header(datagram)["kind"], "relay_challenge")
    key = derive("anabranch 2026 relay challenge", x25519_public(bytes([50] * 32)))
    same("mac of a question", keyed(key, datagram[16:32]).hex(), datagram[32:].hex())
    answer = unhex(challenge["pid_0_response"])
    same("kind of an answer", decode_header(answer)["kind"], "relay_response")
    same("answer", answer[16:].hex(), datagram[16:32].hex())
    for section, largest in (("requests", 0x07), ("replies", 0x87)):
        for vector in vectors[section]:
            message = Reader(unhex(vector["bytes"]))
            kind, body = message.uint(1), Reader(message.take(message.uint(2)))
            same(vector["message"], message.left(), 0)
            relay_message(kind, body)
            same(vector["message"], body.left(), 0)
            same(vector["message"], kind <= largest, True)


def target(body):
    kind = body.uint(1)
    if kind in (1, 2):
        body.address()
    if kind == 2:
        body.take(32)
    if kind > 2:
        raise Refused("target")


def relay_message(kind, body):
    """Reads the body of a request or a reply."""
    sizes = {
        0x04: [8, 8, 8], 0x05: [8], 0x06: [8, 16, 4], 0x07: [8], 0x82: [16, 4, 8, 8, 1], 0x83: [4, 8, 8, 8],
        0x84: [4, 1], 0x85: [8, 1], 0x86: [8], 0x87: [4],
    }
    if kind in (0x01, 0x81):
        if body.take(4) != b"ANBR":
            raise Refused("greeting")
        body.uint(2)
    elif kind == 0x02:
        body.take(body.left())
    elif kind == 0x03:
        for size in (4, 4, 8, 8):
            body.uint(size)
        target(body)
    elif kind in sizes:
        for size in sizes[kind]:
            body.uint(size)
    else:
        raise Refused("kind of message")


# --- both uses --------------------------------------------------------------------------------------------------------


def check_verdicts(lines):
    decoders = {"header": decode_header, "packet": decode_frames, "params": decode_params}
    decoders["transfer"] = transfer.decode_message
    count = 0
    for line in lines:
        kind, digits, verdict = line.split()
        try:
            decoders[kind](unhex(digits if digits != "-" else ""))
            ours = "ok"
        except (Refused, transfer.Refused):
            ours = "refused"
        same(f"{kind} {digits}", ours, verdict)
        count += 1
    return count


def main():
    if sys.argv[1:] == ["--verdicts"]:
        checked = f"{check_verdicts(sys.stdin)} verdicts"
    else:
        for name, check in (("wire", check_wire), ("secure", check_secure), ("relay", check_relay)):
            check(json.loads((HERE / f"{name}.json").read_text()))
        transfer.check((HERE / "transfer.txt").read_text(), same)
        checked = "all vectors"
    for difference in DIFFERENCES[:20]:
        print(difference)
    print(f"{checked}: {len(DIFFERENCES)} differences")
    sys.exit(bool(DIFFERENCES))


if __name__ == "__main__":
    main()
