"""Files in the published formats are read right, and bad ones are one sentence and little memory."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsoft.data import image_formats, numpy_files, streams
from fedsoft.errors import InputError
from tests.pictures import idx

NAMES = ("images", "labels", "clients")
IMAGES = np.arange(2 * 28 * 28, dtype=np.uint64).astype(np.uint8).reshape(2, 28, 28)


def images(file: Path) -> Any:
    return image_formats.read_images(file, 28, 28)


def labels(file: Path) -> Any:
    return image_formats.read_labels(file, 10)


def arrays(file: Path) -> Any:
    return numpy_files.read_arrays(file, NAMES)


READERS: list[Callable[[Path], Any]] = [images, labels, image_formats.read_cifar, arrays]


def sentence(read: Callable[[Path], Any], file: Path, content: bytes | None = None) -> str:
    """What is said of a file that cannot be read."""
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read(file)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert len(text) <= 600
    return text


def npz(**values: np.ndarray) -> bytes:
    with io.BytesIO() as buffer:
        np.savez_compressed(buffer, allow_pickle=True, **values)
        return buffer.getvalue()


# What can be read


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_is_read_packed_or_not_whatever_its_name(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / "a").write_bytes(pack(idx(IMAGES)))
    (tmp_path / "b.gz").write_bytes(pack(idx(np.array([3, 9], np.uint8))))
    assert np.array_equal(images(tmp_path / "a"), IMAGES)
    assert labels(tmp_path / "b.gz").tolist() == [3, 9]


def test_a_cifar_batch_has_the_label_first_and_then_a_plane_for_each_colour(tmp_path: Path) -> None:
    red, green, blue = (bytes([value]) * 1024 for value in (10, 20, 30))
    (tmp_path / "b.bin").write_bytes(b"\x07" + red + green + blue + b"\x02" + blue + green + red)
    x, y = image_formats.read_cifar(tmp_path / "b.bin")
    assert y.tolist() == [7, 2]
    assert x.shape == (2, 3, 32, 32)
    assert x[:, :, 5, 6].tolist() == [[10, 20, 30], [30, 20, 10]]


def test_arrays_come_out_of_an_archive_or_a_folder(tmp_path: Path) -> None:
    made = {"images": IMAGES, "labels": np.array([1, 2], ">i4"), "clients": np.array(["ü", "b"])}
    (tmp_path / "a.npz").write_bytes(npz(**made))
    (tmp_path / "folder").mkdir()
    for name, array in made.items():
        np.save(tmp_path / "folder" / f"{name}.npy", array)
    for path in (tmp_path / "a.npz", tmp_path / "folder"):
        found = arrays(path)
        assert all(np.array_equal(found[name], made[name]) for name in NAMES)
        assert found["labels"].dtype.isnative


# What cannot


@pytest.mark.parametrize("read", READERS)
def test_missing_empty_and_strange_files_are_told_apart(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    assert "does not exist" in sentence(read, tmp_path / "nothing")
    assert "is empty (zero bytes)" in sentence(read, tmp_path / "empty", b"")
    os.mkfifo(tmp_path / "pipe")
    assert "is a folder or a device" in sentence(read, tmp_path / "pipe")
    if read is not arrays:
        assert "is a folder or a device" in sentence(read, tmp_path)


@pytest.mark.parametrize("keep", [1, 3, 9, 15, 16, 17, 500, -1])
def test_a_truncated_idx_file_is_called_so(tmp_path: Path, keep: int) -> None:
    text = sentence(images, tmp_path / "a", idx(IMAGES)[:keep])
    assert "truncated" in text


@pytest.mark.parametrize("keep", [5, 12, 40, -9, -1])
def test_a_truncated_gzip_stream_is_called_so(tmp_path: Path, keep: int) -> None:
    assert "truncated" in sentence(images, tmp_path / "a", gzip.compress(idx(IMAGES))[:keep])


def test_a_gzip_stream_with_a_wrong_byte_is_damaged(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    content = bytearray(gzip.compress(idx(rng.integers(0, 256, (2, 28, 28), dtype=np.uint8))))
    content[-6] ^= 1  # in the checksum
    assert "is damaged" in sentence(images, tmp_path / "a", bytes(content))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\0\0\x0d\x03" + bytes(12), "not an idx file of bytes"),
        (b"hello, this is not idx", "not an idx file of bytes"),
        (idx(np.zeros(20, np.uint8)), "holds labels, should hold images"),
        (idx(np.zeros((1, 8, 8), np.uint8)), "8 x 8 pixels, should be 28 x 28"),
        (idx(np.zeros((0, 28, 28), np.uint8)), "holds no images"),
        (idx(IMAGES) + b"x", "goes on after the data"),
        (gzip.compress(idx(IMAGES) + b"x"), "goes on after the data"),
        (gzip.compress(idx(IMAGES)) + b"junk", "damaged"),
    ],
)
def test_other_content_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    assert words in sentence(images, tmp_path / "a", content)


def test_labels_out_of_range_are_named(tmp_path: Path) -> None:
    assert "image 1 has label 10" in sentence(labels, tmp_path / "a", idx(np.array([3, 10], np.uint8)))
    assert "image 0 has label 255" in sentence(image_formats.read_cifar, tmp_path / "b", b"\xff" * 3073)


@pytest.mark.parametrize("size", [1, 3072, 3074, 2 * 3073 - 1])
def test_a_cifar_batch_of_another_size_is_truncated(tmp_path: Path, size: int) -> None:
    assert "is truncated or not a CIFAR-10 batch" in sentence(image_formats.read_cifar, tmp_path / "a", bytes(size))


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"images": IMAGES}, "lacks an array: unknown array 'labels'"),
        ({"images": np.array([{}]), "labels": IMAGES, "clients": IMAGES}, "Python objects (a pickle)"),
        ({"images": np.array([1j]), "labels": IMAGES, "clients": IMAGES}, "should be numbers or text"),
        ({"images": np.zeros(2, [("a", "i4")]), "labels": IMAGES, "clients": IMAGES}, "should be numbers or text"),
    ],
)
def test_arrays_that_are_missing_or_of_another_kind_are_named(
    tmp_path: Path, made: dict[str, np.ndarray], words: str
) -> None:
    assert words in sentence(arrays, tmp_path / "a.npz", npz(**made))


def test_fortran_order_is_read_as_numpy_does(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(npz(images=np.asfortranarray(IMAGES), labels=IMAGES.T, clients=IMAGES))
    found = arrays(tmp_path / "a.npz")
    assert np.array_equal(found["images"], IMAGES)
    assert np.array_equal(found["labels"], IMAGES.T)


# Malicious files: sizes that are not there, bombs, and pickles


def huge_idx() -> bytes:
    return b"\0\0\x08\x03" + struct.pack(">3I", 2**32 - 1, 2**14, 2**14)  # 2^60 bytes


def npy(shape: str, descr: str = "|u1", body: bytes = b"", magic: bytes = b"\x93NUMPY\x01\x00") -> bytes:
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return magic + struct.pack("<H", len(head)) + head + body


def zipped(member: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w", method) as archive:
            archive.writestr("images.npy", member)
        return buffer.getvalue()


class Evil:
    def __reduce__(self) -> Any:
        return Path.touch, (Path("evil"),)


@pytest.mark.parametrize(
    ("read", "content", "words"),
    [
        (images, huge_idx(), "more than a file of this size can hold"),
        (images, gzip.compress(huge_idx()), "more than a file of this size can hold"),
        (images, gzip.compress(idx(IMAGES) + bytes(50_000_000)), "goes on after the data"),
        (labels, b"\0\0\x08\x01" + struct.pack(">I", 2**32 - 1), "more than a file of this size can hold"),
        (image_formats.read_cifar, pickle.dumps(Evil()), "not a CIFAR-10 batch"),
        (arrays, pickle.dumps(Evil()), "not an .npz archive"),
        (arrays, zipped(npy("(1,)", "|O", pickle.dumps(Evil()))), "Python objects"),
        (arrays, zipped(npy(f"({2**60},)")), "more than a file of this size can hold"),
        (arrays, zipped(npy("(-5,)")), "should be numbers or text"),
        (arrays, zipped(npy("()", "|V0")), "should be numbers or text"),
        (arrays, zipped(npy("(10,)", body=bytes(50_000_000))), "goes on after the data"),
        (arrays, zipped(npy("(10,)", body=bytes(9))), "truncated"),
        (arrays, zipped(npy("(" * 300)), "damaged"),
        (arrays, zipped(npy("(1,)", magic=b"\x93NUMPY\x03\x00")), "version (3, 0)"),
        (arrays, zipped(npy("(10,)", body=bytes(10)), zipfile.ZIP_LZMA), "in a way that numpy does not"),
    ],
)
def test_malicious_files_are_refused_in_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Path], Any], content: bytes, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_bytes(content)
    tracemalloc.start()
    try:
        text = sentence(read, tmp_path / "a")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert words in text
    assert peak < 20_000_000
    assert not (tmp_path / "evil").exists()


def test_an_honest_header_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LIMIT", 1000)
    assert "is too large" in sentence(images, tmp_path / "a", idx(IMAGES))
    assert "is too large" in sentence(image_formats.read_cifar, tmp_path / "b", bytes(3073))


# Anything else


def check_read_or_refused(read: Callable[[Path], Any], file: Path) -> None:
    """Nothing but an InputError of one line ever comes out."""
    told = ""
    try:
        read(file)
    except InputError as error:
        told = str(error)
    assert len(told.splitlines()) <= 1


BEGINNINGS = [
    b"", b"\0\0\x08\x03", b"\0\0\x08\x01", b"\x1f\x8b\x08\0", b"PK\x03\x04", idx(IMAGES)[:40], huge_idx(),
    gzip.compress(idx(IMAGES))[:30], npz(images=IMAGES, labels=IMAGES, clients=IMAGES)[:200],
]  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(st.sampled_from(BEGINNINGS), st.binary(max_size=200))
def test_random_bytes_are_read_or_refused(tmp_path: Path, start: bytes, rest: bytes) -> None:
    (tmp_path / "a").write_bytes(start + rest)
    for read in READERS:
        check_read_or_refused(read, tmp_path / "a")


WHOLE = {
    images: gzip.compress(idx(IMAGES), mtime=0),
    image_formats.read_cifar: bytes(3073 * 2),
    arrays: npz(images=IMAGES, labels=np.arange(2), clients=np.array(["a", "b"])),
}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.sampled_from(list(WHOLE)), st.integers(0, 10**6), st.integers(0, 255), st.integers(0, 3))
def test_changed_and_cut_files_are_read_or_refused(
    tmp_path: Path, read: Callable[[Path], Any], place: int, value: int, cut: int
) -> None:
    content = bytearray(WHOLE[read])
    content[place % len(content)] = value
    (tmp_path / "a").write_bytes(bytes(content[: len(content) - cut * place % len(content)]))
    check_read_or_refused(read, tmp_path / "a")
