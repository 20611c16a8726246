"""Random damage of bytes, texts and nested values, drawn from a generator."""

import gzip
import io
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np

Rng = np.random.Generator
Damage = Callable[[bytes, Rng], bytes]

HEADER = 512
"""Size of the header in bytes, which is damaged preferentially."""
NUMBERS = (0, 1, 255, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
TOKENS = (
    "-1",
    "0",
    "1e999",
    "nan",
    "-inf",
    "9" * 30,
    "9" * 5000,
    "",
    "[" * 3000,
    "{" * 3000,
    "x" * 20000,
    "../../../evil",
    "/evil",
    "\x00",
    "\u202e\U0001f41b",
    "null",
    "true",
    "!!python/object/apply:os.system ['true']",
)


def pick(rng: Rng, items: Any) -> Any:
    """Return a random item."""
    return items[int(rng.integers(len(items)))]


def damage_bytes(content: bytes, rng: Rng) -> bytes:
    """Damage bytes in one of many ways, regardless of their meaning."""
    return bytes(pick(rng, _BYTE_DAMAGES)(content or b"\0", rng))


def damage_text(content: bytes, rng: Rng) -> bytes:
    """Replace a few numbers or words of a text."""
    text = content.decode(errors="replace")
    for _ in range(int(rng.integers(1, 4))):
        words = list(re.finditer(r"[\w.+-]+", text))
        if words:
            word = pick(rng, words)
            text = text[: word.start()] + pick(rng, TOKENS) + text[word.end() :]
    return text.encode(errors="replace")


def damage_tree(value: Any, rng: Rng, canary: str) -> Any:
    """Replace, remove or add one node of nested dicts and lists."""
    value = deepcopy(value)
    places = list(_places(value))
    if not places:
        return pick(rng, _values(canary))
    inner, key = pick(rng, places)
    action = int(rng.integers(5))
    if action == 0:
        del inner[key]
    elif action == 1 and isinstance(inner, dict):
        inner[pick(rng, ("evil", "", "../../evil", canary, "__class__"))] = pick(rng, _values(canary))
    elif action == 2 and isinstance(inner[key], int | float):
        inner[key] = pick(rng, (-inner[key], inner[key] * 1000, inner[key] + 1, inner[key] / 7, str(inner[key])))
    else:
        inner[key] = pick(rng, _values(canary))
    return value


def inside_gzip(damage: Damage) -> Damage:
    """Damage the compressed content and compress it again with the correct checksum."""
    return lambda content, rng: gzip.compress(damage(gzip.decompress(content), rng), 1)


def inside_zip(damage: Damage) -> Damage:
    """Damage a member of a zip archive or its name, and pack it again with correct checksums."""

    def change(content: bytes, rng: Rng) -> bytes:
        with zipfile.ZipFile(io.BytesIO(content)) as old:
            members = [(name, old.read(name)) for name in old.namelist()]
        place = int(rng.integers(len(members)))
        name, inner = members[place]
        action = int(rng.integers(8))
        if action == 0:
            members[place] = (pick(rng, ("../../evil.npy", "/evil.npy", f"evil/{name}", name + "\0")), inner)
        elif action == 1:
            members.append((name, damage(inner, rng)))  # duplicate name
        elif action == 2:
            del members[place]
        else:
            members[place] = (name, damage(inner, rng))
        packed = io.BytesIO()
        method = pick(rng, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(packed, "w", method) as new:
            for name, inner in members:
                new.writestr(zipfile.ZipInfo(name), inner)
        return packed.getvalue()

    return change


def inside_png(content: bytes, rng: Rng) -> bytes:
    """Damage one chunk of a PNG file and correct its checksum."""
    chunks, place = [], 8
    while place + 12 <= len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        chunks.append((content[place + 4 : place + 8], content[place + 8 : place + 8 + length]))
        place += 12 + length
    number = int(rng.integers(len(chunks)))
    kind, data = chunks[number]
    if kind == b"IDAT" and rng.random() < 0.5:
        data = zlib.compress(damage_bytes(zlib.decompress(data), rng))
    elif rng.random() < 0.1:
        kind = pick(rng, (b"zTXt", b"iCCP", b"acTL", b"PLTE", b"IEND", b"tRNS"))
    else:
        data = damage_bytes(data, rng)
    chunks[number] = (kind, data)
    packed = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return content[:8] + packed


def aliases(depth: int = 12, width: int = 9) -> str:
    """Return a few lines of YAML that expand to `width ** depth` values."""
    lines = [f"a0: &a0 [{', '.join(['1'] * width)}]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]" for level in range(1, depth)]
    return "\n".join(lines) + "\n"


def entities(depth: int = 12, width: int = 10) -> str:
    """Return a document type whose last entity expands to `width ** depth` words."""
    lines = ['<!ENTITY e0 "evil">']
    lines += [f'<!ENTITY e{level} "{f"&e{level - 1};" * width}">' for level in range(1, depth)]
    return f"<!DOCTYPE LidcReadMessage [{''.join(lines)}]>"


def _place(content: bytes, rng: Rng) -> int:
    """Return a random offset, with probability 3/4 near the beginning."""
    return int(rng.integers(min(HEADER, len(content)) if rng.random() < 0.75 else len(content)))


def _flip_bits(content: bytes, rng: Rng) -> bytes:
    changed = bytearray(content)
    for _ in range(int(rng.integers(1, 17))):
        changed[_place(content, rng)] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _overwrite(content: bytes, rng: Rng) -> bytes:
    changed, place = bytearray(content), _place(content, rng)
    length = int(rng.integers(1, 65))
    changed[place : place + length] = pick(rng, (b"\0", b"\xff", b"\x7f", b" ")) * length
    return bytes(changed)


def _absurd_number(content: bytes, rng: Rng) -> bytes:
    changed, place = bytearray(content), _place(content, rng)
    size, order = pick(rng, (2, 4, 8)), pick(rng, ("little", "big"))
    number = pick(rng, NUMBERS) & (2 ** (8 * size) - 1)
    changed[place : place + size] = number.to_bytes(size, order)
    return bytes(changed)


def _absurd_float(content: bytes, rng: Rng) -> bytes:
    changed, place = bytearray(content), _place(content, rng)
    number = pick(rng, (float("nan"), float("inf"), -1e30, 3e38, 1e-40))
    changed[place : place + 4] = struct.pack(pick(rng, ("<f", ">f")), number)
    return bytes(changed)


def _truncate(content: bytes, rng: Rng) -> bytes:
    return content[: int(rng.integers(len(content)))]


def _cut_out(content: bytes, rng: Rng) -> bytes:
    place = _place(content, rng)
    return content[:place] + content[place + int(rng.integers(1, 200)) :]


def _repeat(content: bytes, rng: Rng) -> bytes:
    place, length = _place(content, rng), int(rng.integers(1, 500))
    return content[:place] + content[place : place + length] * int(rng.integers(2, 6)) + content[place:]


def _insert(content: bytes, rng: Rng) -> bytes:
    place = _place(content, rng)
    return content[:place] + rng.bytes(int(rng.integers(1, 64))) + content[place:]


def _append(content: bytes, rng: Rng) -> bytes:
    return content + rng.bytes(int(rng.integers(1, 1000)))


def _noise(content: bytes, rng: Rng) -> bytes:
    return rng.bytes(int(rng.integers(0, 2 * min(len(content), 5000) + 1)))


_BYTE_DAMAGES = (
    _flip_bits,
    _flip_bits,
    _overwrite,
    _absurd_number,
    _absurd_number,
    _absurd_float,
    _truncate,
    _cut_out,
    _repeat,
    _insert,
    _append,
    _noise,
)


def _places(value: Any) -> Any:
    """Yield every container of a tree with each of its keys."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)


def _values(canary: str) -> tuple[Any, ...]:
    nested: Any = 1
    for _ in range(300):
        nested = [nested]
    return (
        *(None, True, -1, 0, 1, 2**31, 2**63, 10**30, 0.5, -1e308, float("nan"), float("inf")),
        *("", "evil", "x" * 10000, "../../../evil", canary, "\0", "1", "\ud800"),
        *([], {}, [None], [[]], {"": {}}, [1] * 5000, nested),
    )
