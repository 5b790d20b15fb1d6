from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from runtime.errors import BadModel
from runtime.gguf_header import header_digest, read_header

from .gguf_files import write_gguf


def test_the_header_reads_as_with_the_gguf_package(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors={"rope_freqs.weight": np.arange(4, dtype=np.float32)})
    header = read_header(path)
    reader = GGUFReader(path)
    expected = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert header.metadata == expected
    assert {name: (tensor.kind, tensor.offset, tensor.shape) for name, tensor in header.tensors.items()} == {
        tensor.name: (tensor.tensor_type, tensor.data_offset, tuple(tensor.shape.tolist())) for tensor in reader.tensors
    }


def test_the_digest_changes_with_metadata_and_size_but_not_with_the_path(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "a.gguf")
    same = write_gguf(tmp_path / "b.gguf")
    other = write_gguf(tmp_path / "c.gguf", fields={"context_length": 256})
    longer = write_gguf(tmp_path / "d.gguf")
    with longer.open("ab") as file:
        file.write(b"\0")
    assert header_digest(first) == header_digest(same)
    assert len({header_digest(path) for path in (first, other, longer)}) == 3


@pytest.mark.parametrize("read", [read_header, header_digest])
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is empty"),
        (b"PK\3\4 something else", "is not a GGUF file"),
        (b"GGUF", "cut short"),
        (b"GGUF" + (9).to_bytes(4, "little") + bytes(16), "GGUF version 9"),
    ],
)
def test_a_file_that_is_no_gguf_is_refused_with_its_name(
    tmp_path: Path, read: object, content: bytes, why: str
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(BadModel, match=why) as error:
        read(path)  # type: ignore[operator]  # one of the two above
    assert str(path) in str(error.value)


@pytest.mark.parametrize("read", [read_header, header_digest])
def test_a_header_that_is_cut_anywhere_is_refused(tmp_path: Path, read: object) -> None:
    whole = write_gguf(tmp_path / "m.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    end = whole.index(b"token_embd.weight")
    for length in {*range(1, 200, 7), *range(200, end, 997), end}:
        path.write_bytes(whole[:length])
        with pytest.raises(BadModel):
            read(path)  # type: ignore[operator]  # one of the two above
