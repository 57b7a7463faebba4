"""The primitives that ../protocol.md builds on, in plain Python: slow, not constant in time, and for tests only.

BLAKE3 (of at most one chunk), X25519 (RFC 7748), AES-GCM (NIST SP 800-38D), and Noise IKpsk2 as the initiator and
responder at once (Noise specification, revision 34).
"""

import hashlib
import hmac
import struct

# --- BLAKE3 -----------------------------------------------------------------------------------------------------------

IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
ORDER = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
CHUNK_START, CHUNK_END, ROOT, KEYED, CONTEXT, MATERIAL = 1, 2, 8, 16, 32, 64
M32 = 0xFFFFFFFF


def _rotate(word, by):
    return (word >> by | word << (32 - by)) & M32


def _mix(v, a, b, c, d, first, second):
    v[a] = (v[a] + v[b] + first) & M32
    v[d] = _rotate(v[d] ^ v[a], 16)
    v[c] = (v[c] + v[d]) & M32
    v[b] = _rotate(v[b] ^ v[c], 12)
    v[a] = (v[a] + v[b] + second) & M32
    v[d] = _rotate(v[d] ^ v[a], 8)
    v[c] = (v[c] + v[d]) & M32
    v[b] = _rotate(v[b] ^ v[c], 7)


def _compress(chain, block, counter, flags):
    words = list(struct.unpack("<16I", block.ljust(64, b"\0")))
    v = [*chain, *IV[:4], counter & M32, counter >> 32, len(block), flags]
    for _ in range(7):
        for column in range(4):
            _mix(v, column, column + 4, column + 8, column + 12, words[2 * column], words[2 * column + 1])
        for column in range(4):
            places = (column, (column + 1) % 4 + 4, (column + 2) % 4 + 8, (column + 3) % 4 + 12)
            _mix(v, *places, words[8 + 2 * column], words[9 + 2 * column])
        words = [words[at] for at in ORDER]
    return [v[at] ^ v[at + 8] for at in range(8)] + [v[at + 8] ^ chain[at] for at in range(8)]


def _blake3(key, message, flags, size=32):
    assert len(message) <= 1024, "one chunk"
    chain, start = list(key), CHUNK_START
    blocks = [message[at : at + 64] for at in range(0, len(message), 64)] or [b""]
    for block in blocks[:-1]:
        chain = _compress(chain, block, 0, flags | start)[:8]
        start = 0
    out, counter = b"", 0
    while len(out) < size:
        words = _compress(chain, blocks[-1], counter, flags | start | CHUNK_END | ROOT)
        out += struct.pack("<16I", *words)
        counter += 1
    return out[:size]


def blake3_keyed(key, message):
    return _blake3(struct.unpack("<8I", key), message, KEYED)


def blake3_derive(context, message, size=32):
    key = _blake3(IV, context.encode(), CONTEXT)
    return _blake3(struct.unpack("<8I", key), message, MATERIAL, size)


# --- X25519 -----------------------------------------------------------------------------------------------------------

P = 2**255 - 19


def x25519(scalar, point):
    k = int.from_bytes(scalar, "little") & ~7 & (1 << 254) - 1 | 1 << 254
    u = int.from_bytes(point, "little") & (1 << 255) - 1
    x2, z2, x3, z3, swap = 1, 0, u, 1, 0
    for bit in reversed(range(255)):
        if swap ^ (k >> bit & 1):
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = k >> bit & 1
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        da, cb, aa, bb = d * a, c * b, a * a, b * b
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % P, u * (da - cb) ** 2 % P
        x2, z2 = aa * bb % P, e * (aa + 121665 * e) % P
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, P - 2, P) % P).to_bytes(32, "little")


def x25519_public(scalar):
    return x25519(scalar, (9).to_bytes(32, "little"))


# --- AES-GCM ----------------------------------------------------------------------------------------------------------


def _times_x(byte):
    return (byte << 1 ^ (0x1B if byte & 0x80 else 0)) & 0xFF


def _substitutions():
    table, p, q = [0] * 256, 1, 1
    while True:
        p ^= _times_x(p)
        for shift in (1, 2, 4):
            q ^= q << shift & 0xFF
        q ^= 0x09 if q & 0x80 else 0
        rotated = (q << shift | q >> (8 - shift) for shift in range(1, 5))
        value = q
        for each in rotated:
            value ^= each & 0xFF
        table[p] = value ^ 0x63
        if p == 1:
            table[0] = 0x63
            return table


SUBSTITUTES = _substitutions()


def _round_keys(key):
    words = [list(key[at : at + 4]) for at in range(0, len(key), 4)]
    count, constant = len(words), 1
    for at in range(count, 4 * (count + 7)):
        word = list(words[-1])
        if at % count == 0:
            word = [SUBSTITUTES[byte] for byte in word[1:] + word[:1]]
            word[0] ^= constant
            constant = _times_x(constant)
        elif count > 6 and at % count == 4:
            word = [SUBSTITUTES[byte] for byte in word]
        words.append([a ^ b for a, b in zip(words[at - count], word)])
    flat = [byte for word in words for byte in word]
    return [flat[at : at + 16] for at in range(0, len(flat), 16)]


def _aes(keys, block):
    state = [a ^ b for a, b in zip(block, keys[0])]
    for number, key in enumerate(keys[1:], 1):
        state = [SUBSTITUTES[state[(at + 4 * (at % 4)) % 16]] for at in range(16)]
        if number < len(keys) - 1:
            mixed = []
            for at in range(0, 16, 4):
                column = state[at : at + 4]
                whole = column[0] ^ column[1] ^ column[2] ^ column[3]
                mixed += [column[i] ^ whole ^ _times_x(column[i] ^ column[(i + 1) % 4]) for i in range(4)]
            state = mixed
        state = [a ^ b for a, b in zip(state, key)]
    return bytes(state)


def _ghash(h, message):
    total = 0
    for at in range(0, len(message), 16):
        total ^= int.from_bytes(message[at : at + 16], "big")
        product, value = 0, h
        for bit in reversed(range(128)):
            if total >> bit & 1:
                product ^= value
            value = value >> 1 ^ (0xE1 << 120 if value & 1 else 0)
        total = product
    return total.to_bytes(16, "big")


def _whole(message):
    return message + bytes(-len(message) % 16)


def _gcm(key, nonce, text, extra, is_sealed):
    keys = _round_keys(key)
    h = int.from_bytes(_aes(keys, bytes(16)), "big")
    out = bytearray()
    for number, at in enumerate(range(0, len(text), 16), 2):
        stream = _aes(keys, nonce + number.to_bytes(4, "big"))
        out += bytes(a ^ b for a, b in zip(text[at : at + 16], stream))
    sealed = text if is_sealed else bytes(out)
    lengths = (8 * len(extra)).to_bytes(8, "big") + (8 * len(sealed)).to_bytes(8, "big")
    digest = _ghash(h, _whole(extra) + _whole(sealed) + lengths)
    tag = bytes(a ^ b for a, b in zip(digest, _aes(keys, nonce + (1).to_bytes(4, "big"))))
    return bytes(out), tag


def aes_gcm_seal(key, nonce, text, extra):
    sealed, tag = _gcm(key, nonce, text, extra, False)
    return sealed + tag


def aes_gcm_open(key, nonce, sealed, extra):
    text, tag = _gcm(key, nonce, sealed[:-16], extra, True)
    return text if tag == sealed[-16:] else None


# --- Noise ------------------------------------------------------------------------------------------------------------


class Noise:
    """Both messages of IKpsk2, with the secrets of both ends at hand."""

    def __init__(self, name, prologue, responder):
        self.hash = name.ljust(32, b"\0")
        self.chain, self.key, self.count = self.hash, None, 0
        self.responder = responder
        self._mix_hash(prologue)
        self._mix_hash(responder)

    def _mix_hash(self, message):
        self.hash = hashlib.sha256(self.hash + message).digest()

    def _derive(self, material, count):
        secret = hmac.new(self.chain, material, hashlib.sha256).digest()
        outputs = [b""]
        for number in range(1, count + 1):
            outputs.append(hmac.new(secret, outputs[-1] + bytes([number]), hashlib.sha256).digest())
        return outputs[1:]

    def _mix_key(self, material):
        self.chain, self.key = self._derive(material, 2)
        self.count = 0

    def _encrypt(self, text):
        nonce = bytes(4) + self.count.to_bytes(8, "big")
        sealed = aes_gcm_seal(self.key, nonce, text, self.hash)
        self.count += 1
        self._mix_hash(sealed)
        return sealed

    def _ephemeral(self, secret):
        public = x25519_public(secret)
        self._mix_hash(public)
        self._mix_key(public)
        return public

    def write_first(self, ephemeral, static, payload):
        self.client = (ephemeral, static)
        message = self._ephemeral(ephemeral)
        self._mix_key(x25519(ephemeral, self.responder))
        message += self._encrypt(x25519_public(static))
        self._mix_key(x25519(static, self.responder))
        return message + self._encrypt(payload)

    def write_second(self, ephemeral, psk, payload):
        message = self._ephemeral(ephemeral)
        for secret in self.client:
            self._mix_key(x25519(ephemeral, x25519_public(secret)))
        self.chain, mixed, self.key = self._derive(psk, 3)
        self.count = 0
        self._mix_hash(mixed)
        return message + self._encrypt(payload)

    def split(self):
        return self._derive(b"", 2)
