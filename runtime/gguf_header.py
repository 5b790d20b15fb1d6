"""Reads the header of a GGUF file: its metadata and where its tensors lie.

The `gguf` package's own reader turns every string of the vocabulary into arrays, which takes seconds; the launcher
has to know the header before it can start anything, and reads it in a tenth of one. Knows nothing of what the
metadata means, and reads no weights.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .errors import BadModel

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_LENGTH = struct.Struct("<Q")
_KIND = struct.Struct("<I")


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Where a tensor lies: `shape` as GGUF has it (innermost first), `kind` its ggml type, `offset` in the file."""

    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """What stands before the weights."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def read_header(path: Path) -> GgufHeader:
    """Parse the header of the file at `path`.

    Raises:
        BadModel: the file is not GGUF, cut short, or of an unknown version.
    """
    with _mapped(path) as view:
        cursor = _Cursor(view, path)
        num_tensors, num_fields = cursor.counts()
        metadata: dict[str, Any] = {}
        for _ in range(num_fields):
            key = cursor.string()
            metadata[key] = cursor.value(cursor.number(_KIND))
        described = [cursor.tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        data_start = -(-cursor.offset // alignment) * alignment
        tensors = {name: replace(tensor, offset=data_start + tensor.offset) for name, tensor in described}
        return GgufHeader(metadata=metadata, tensors=tensors)


def header_digest(path: Path) -> str:
    """A hash of everything before the weights and of the file's size, without decoding the header.

    Raises:
        BadModel: as for `read_header`.
    """
    with _mapped(path) as view:
        cursor = _Cursor(view, path)
        num_tensors, num_fields = cursor.counts()
        for _ in range(num_fields):
            cursor.skip_string()
            cursor.skip_value(cursor.number(_KIND))
        for _ in range(num_tensors):
            cursor.tensor()
        digest = hashlib.sha256(memoryview(view)[: cursor.offset])
        digest.update(_LENGTH.pack(len(view)))
        return digest.hexdigest()


class _Cursor:
    """A position in the mapped file that moves forward."""

    def __init__(self, view: mmap.mmap, path: Path) -> None:
        self._view = view
        self._path = path
        self.offset = 0

    def counts(self) -> tuple[int, int]:
        """Check magic and version; return the number of tensors and of metadata fields."""
        if self._view[:4] != _MAGIC:
            raise BadModel(f"{self._path} is not a GGUF file: it does not begin with {_MAGIC.decode()}")
        self.offset = 4
        version = self.number(_KIND)
        if version not in _VERSIONS:
            known = ", ".join(map(str, _VERSIONS))
            raise BadModel(f"{self._path} has GGUF version {version}; known versions: {known}. Convert it anew.")
        return self.number(_LENGTH), self.number(_LENGTH)

    def number(self, form: struct.Struct) -> int:
        """The next integer."""
        try:
            (value,) = form.unpack_from(self._view, self.offset)
        except struct.error:
            raise self._cut_short() from None
        self.offset += form.size
        return int(value)

    def string(self) -> str:
        """The next string; bytes that are no UTF-8 are kept as surrogates."""
        length = self.number(_LENGTH)
        start = self._advance(length)
        return self._view[start : start + length].decode("utf-8", "surrogateescape")

    def skip_string(self) -> None:
        """Move past a string."""
        self._advance(self.number(_LENGTH))

    def value(self, kind: int) -> object:
        """The next value of the given type."""
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            element, count = self.number(_KIND), self.number(_LENGTH)
            if element in _SCALARS:
                return list(self._scalars(element, count))
            return [self.value(element) for _ in range(count)]
        return self._scalars(kind, 1)[0]

    def skip_value(self, kind: int) -> None:
        """Move past a value of the given type."""
        if kind == _STRING:
            self.skip_string()
        elif kind != _ARRAY:
            self._advance(self._size(kind))
        else:
            element, count = self.number(_KIND), self.number(_LENGTH)
            if element == _STRING:
                self._skip_strings(count)
            elif element == _ARRAY:
                for _ in range(count):
                    self.skip_value(element)
            else:
                self._advance(self._size(element) * count)

    def tensor(self) -> tuple[str, TensorInfo]:
        """The next tensor's name and place, its offset counted from the start of the weights."""
        name = self.string()
        shape = tuple(self.number(_LENGTH) for _ in range(self.number(_KIND)))
        return name, TensorInfo(shape=shape, kind=self.number(_KIND), offset=self.number(_LENGTH))

    def _skip_strings(self, count: int) -> None:
        # The one loop over a vocabulary: hundreds of thousands of turns, so the offset is a local.
        offset, view, read = self.offset, self._view, _LENGTH.unpack_from
        try:
            for _ in range(count):
                offset += 8 + read(view, offset)[0]
        except struct.error:
            raise self._cut_short() from None
        self.offset = offset
        self._advance(0)

    def _scalars(self, kind: int, count: int) -> tuple[Any, ...]:
        start = self._advance(self._size(kind) * count)
        return struct.unpack_from(f"<{count}{_SCALARS[kind]}", self._view, start)

    def _size(self, kind: int) -> int:
        if kind not in _SCALARS:
            raise BadModel(f"{self._path} has a damaged header: value type {kind} at byte {self.offset} is unknown")
        return struct.calcsize("<" + _SCALARS[kind])

    def _advance(self, num_bytes: int) -> int:
        start = self.offset
        if num_bytes > len(self._view) - start:
            raise self._cut_short()
        self.offset = start + num_bytes
        return start

    def _cut_short(self) -> BadModel:
        return BadModel(f"{self._path} is cut short or damaged: its header runs past its end. Download it again.")


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        try:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise BadModel(f"{path} is empty") from None
