"""Reads and writes protobuf messages of the kubelet's APIs, which are few and small, without generated code. Pure."""

from __future__ import annotations

from collections.abc import Iterator

VARINT = 0
FIXED_64 = 1
TEXT = 2  # also messages and bytes
FIXED_32 = 5


def encode_field(number: int, content: bytes | str) -> bytes:
    """Return one field that is a text, bytes or a message."""
    data = content.encode() if isinstance(content, str) else content
    return _encode_varint(number << 3 | TEXT) + _encode_varint(len(data)) + data


def encode_flag(number: int) -> bytes:
    """Return one field that is a boolean, and true."""
    return _encode_varint(number << 3 | VARINT) + _encode_varint(1)


def _encode_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def first_text(message: bytes, number: int) -> str:
    """Return the first text of this field; empty if there is none."""
    return next(all_fields(message, number), b"").decode()


def all_fields(message: bytes, number: int) -> Iterator[bytes]:
    """Yield the content of each text or message of this field. `ValueError` or `IndexError` if it is cut off."""
    place = 0
    while place < len(message):
        key, place = _read_varint(message, place)
        field = key >> 3
        wire_type = key & 7
        if wire_type == VARINT:
            _, place = _read_varint(message, place)
            continue
        if wire_type in (FIXED_64, FIXED_32):
            place += 8 if wire_type == FIXED_64 else 4
            continue
        if wire_type != TEXT:
            raise ValueError(f"wire type {wire_type}")
        size, place = _read_varint(message, place)
        if place + size > len(message):
            raise ValueError("it is cut off")
        if field == number:
            yield message[place : place + size]
        place += size


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    """Return the number at this place, and the place after it."""
    number = shift = 0
    while True:
        byte = message[place]
        place += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return number, place
