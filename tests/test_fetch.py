"""Files are found where they should be, and downloaded whole or not at all."""

from __future__ import annotations

import hashlib
import io
import os
import re
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedsoft import fetch
from fedsoft.errors import InputError
from tests.pictures import LETTERS, idx, numbered, write_cifar, write_letters, write_mnist

LETTER_FILES = fetch.collection("letters").files
CIFAR_FILES = fetch.collection("cifar10").files


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No files anywhere, and a cache of our own."""
    monkeypatch.delenv(fetch.VARIABLE, raising=False)
    monkeypatch.setattr(fetch, "cache", lambda: tmp_path / "cache")
    return tmp_path


def sentence(action: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        action()
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def found_in(name: str, data_dir: Path | None = None) -> Path:
    return next(iter(fetch.find(fetch.collection(name), data_dir).values())).parent


# What is known


def test_addresses_and_checksums_have_their_form() -> None:
    for wanted in fetch.COLLECTIONS.values():
        assert sorted(file for part in wanted.downloads for file in part.files) == sorted(wanted.files)
        for part in wanted.downloads:
            assert part.url.startswith("https://")
            assert re.fullmatch(r"[0-9a-f]{32}", part.md5)


def test_an_unknown_name_gets_the_nearest_one() -> None:
    assert "did you mean 'letters'" in sentence(lambda: fetch.load("leters"))


# Finding


def test_the_order_is_data_dir_then_the_variable_then_the_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_letters(home / "cache" / "letters", 1, 1)
    assert found_in("letters") == home / "cache" / "letters"
    write_letters(home / "variable" / "letters", 1, 1)
    monkeypatch.setenv(fetch.VARIABLE, str(home / "variable"))
    assert found_in("letters") == home / "variable" / "letters"
    assert found_in("letters", home / "given") == home / "variable" / "letters"
    write_letters(home / "given", 1, 1)
    assert found_in("letters", home / "given") == home / "given"


def test_subfolders_are_looked_into_by_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fetch.VARIABLE, str(home))
    write_cifar(home / "cifar-10-batches-bin", 10)
    write_mnist(home / "mnist")
    assert found_in("cifar10") == home / "cifar-10-batches-bin"
    assert found_in("mnist") == home / "mnist"
    assert found_in("cifar10", home / "cifar-10-batches-bin") == home / "cifar-10-batches-bin"


def test_mnist_is_not_taken_for_fashion(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Their files have the same names: only somebody who says so gets a folder without their names.
    write_mnist(home)
    monkeypatch.setenv(fetch.VARIABLE, str(home))
    sentence(lambda: found_in("fashion"))
    sentence(lambda: found_in("mnist"))
    assert found_in("fashion", home) == home


def test_files_may_be_unpacked(home: Path) -> None:
    write_mnist(home, packed=False)
    train, test = fetch.load("mnist", home)
    assert (len(train.y), len(test.y)) == (60, 20)


def test_all_files_come_from_one_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_letters(home / "half", 1, 1)
    (home / "half" / LETTER_FILES[3]).unlink()
    write_letters(home / "whole", 2, 1)
    monkeypatch.setenv(fetch.VARIABLE, str(home / "whole"))
    assert found_in("letters", home / "half") == home / "whole"


def test_a_missing_file_is_named_with_where_it_was_looked_for_and_how_to_get_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(fetch.VARIABLE, str(home / "variable"))
    write_letters(home / "given", 1, 1)
    (home / "given" / LETTER_FILES[2]).unlink()
    text = sentence(lambda: fetch.load("letters", home / "given"))
    assert f"file '{LETTER_FILES[2]}' is missing" in text
    for place in (home / "given", home / "variable", home / "cache" / "letters"):
        assert f"'{place}'" in text
    assert "run 'fedsoft data fetch letters'" in text
    assert "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip" in text


def test_without_pooch_there_is_no_cache_but_a_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "cache", lambda: None)
    assert "looked in no folder" in sentence(lambda: fetch.load("letters"))
    assert "needs the package 'pooch'" in sentence(lambda: fetch.fetch("letters"))


def test_folders_that_cannot_be_are_not_found(home: Path) -> None:
    for strange in ("nul\0l", "x" * 5000):
        assert "is missing" in sentence(lambda strange=strange: fetch.load("letters", strange))


# Reading and checking


def test_images_and_labels_must_belong_together(home: Path) -> None:
    write_mnist(home)
    (home / "t10k-images-idx3-ubyte.gz").write_bytes(idx(numbered(3, 28, 28)))
    assert "has 3 images, but" in sentence(lambda: fetch.load("mnist", home))


def test_check_tells_a_part_from_the_whole_and_from_other_bytes(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(home, train=2, test=1)
    assert fetch.check("mnist", home).verdict == "readable, but fewer images than were published"
    small = replace(fetch.collection("mnist"), counts=(20, 10))
    monkeypatch.setitem(fetch.COLLECTIONS, "mnist", small)
    assert fetch.check("mnist", home).verdict.startswith("readable, but not the published bytes: train-images")
    right = tuple(replace(part, md5=md5(home / part.files[0])) for part in small.downloads)
    monkeypatch.setitem(fetch.COLLECTIONS, "mnist", replace(small, downloads=right))
    assert fetch.check("mnist", home).verdict == "complete, checksums right"


def test_check_complains_of_a_damaged_file(home: Path) -> None:
    write_cifar(home, 10)
    with (home / "data_batch_3.bin").open("r+b") as file:
        file.truncate(5000)
    assert "data_batch_3.bin' is truncated" in sentence(lambda: fetch.check("cifar10", home))


# Downloading, from this machine


def md5(file: Path) -> str:
    return hashlib.md5(file.read_bytes()).hexdigest()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        pass


@pytest.fixture
def server(home: Path) -> Iterator[str]:
    (home / "www").mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(home / "www"))) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()
        thread.join()


def publish(monkeypatch: pytest.MonkeyPatch, name: str, url: str, archive: Path, checksum: str | None = None) -> None:
    """Make an archive on this machine the address of a data set."""
    wanted = fetch.collection(name)
    part = replace(wanted.downloads[0], url=f"{url}/{archive.name}", md5=checksum or md5(archive))
    monkeypatch.setitem(fetch.COLLECTIONS, name, replace(wanted, downloads=(part,)))


def tar(archive: Path, folder: Path, names: tuple[str, ...] = CIFAR_FILES) -> None:
    with tarfile.open(archive, "w:gz", compresslevel=1) as opened:
        for name in names:
            opened.add(folder / name, f"cifar-10-batches-bin/{name}")


def test_an_archive_is_downloaded_unpacked_and_removed(
    home: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar(home / "made", 10)
    tar(home / "www" / "c.tar.gz", home / "made")
    publish(monkeypatch, "cifar10", server, home / "www" / "c.tar.gz")
    report = fetch.fetch("cifar10")
    assert (report.train, report.test) == (50, 10)
    assert sorted(path.name for path in report.folder.iterdir()) == sorted(CIFAR_FILES)
    assert report.folder == home / "cache" / "cifar-10-batches-bin"
    (home / "www" / "c.tar.gz").unlink()
    assert fetch.fetch("cifar10") == report  # nothing is downloaded that is there


def test_a_zip_goes_into_the_folder_asked_for(home: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_letters(home / "made", 1, 1)
    with zipfile.ZipFile(home / "www" / "e.zip", "w") as opened:
        opened.writestr("gzip/../../evil", "not asked for")
        for name in LETTER_FILES:
            opened.write(home / "made" / name, f"gzip/{name}")
    publish(monkeypatch, "letters", server, home / "www" / "e.zip")
    assert fetch.fetch("letters", home / "mine").folder == home / "mine" / "letters"
    assert sorted(path.name for path in (home / "mine" / "letters").iterdir()) == sorted(LETTER_FILES)
    assert not list(home.rglob("evil"))


def test_plain_files_are_downloaded_one_by_one(home: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(home / "www")
    wanted = fetch.collection("mnist")
    parts = tuple(
        replace(part, url=f"{server}/{part.files[0]}", md5=md5(home / "www" / part.files[0]))
        for part in wanted.downloads
    )
    monkeypatch.setitem(fetch.COLLECTIONS, "mnist", replace(wanted, downloads=parts))
    assert fetch.fetch("mnist").train == 60


def test_a_wrong_checksum_keeps_nothing(home: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "www" / "c.tar.gz").write_bytes(b"something else")
    publish(monkeypatch, "cifar10", server, home / "www" / "c.tar.gz", checksum="0" * 32)
    text = sentence(lambda: fetch.fetch("cifar10"))
    assert "another checksum than was published" in text
    assert not list((home / "cache" / "cifar-10-batches-bin").iterdir())


def test_an_address_that_does_not_answer_is_one_sentence(
    home: Path, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, "cifar10", server, home / "www" / "gone.tar.gz", checksum="0" * 32)
    text = sentence(lambda: fetch.fetch("cifar10"))
    assert text.startswith(f"{server}/gone.tar.gz cannot be downloaded (")
    assert "404" in text
    publish(monkeypatch, "cifar10", "http://127.0.0.1:1", home / "www" / "gone.tar.gz", checksum="0" * 32)
    text = sentence(lambda: fetch.fetch("cifar10"))
    assert "Connection refused" in text
    assert f"put its files into '{home / 'cache' / 'cifar-10-batches-bin'}'" in text


def test_a_download_without_end_is_cut_off(home: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "www" / "c.tar.gz").write_bytes(bytes(2000))
    monkeypatch.setattr(fetch, "DOWNLOAD_LIMIT", 1000)
    publish(monkeypatch, "cifar10", server, home / "www" / "c.tar.gz")
    assert "it has more than 1000 bytes" in sentence(lambda: fetch.fetch("cifar10"))
    assert not list((home / "cache" / "cifar-10-batches-bin").iterdir())


@pytest.mark.parametrize("kind", ["link", "missing", "cut", "bomb"])
def test_malicious_archives_are_refused(home: Path, server: str, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    archive = home / "www" / "c.tar.gz"
    write_cifar(home / "made", 10)
    if kind == "link":
        with tarfile.open(archive, "w:gz") as opened:
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{CIFAR_FILES[0]}")
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            opened.addfile(member)
    elif kind == "missing":
        tar(archive, home / "made", CIFAR_FILES[:3])
    else:
        tar(archive, home / "made")
    if kind == "cut":
        archive.write_bytes(archive.read_bytes()[:-200])
    if kind == "bomb":
        monkeypatch.setattr(fetch, "MEMBER_LIMIT", 1000)
    publish(monkeypatch, "cifar10", server, archive)
    words = {"link": "is not a plain file", "missing": "lacks a file", "cut": "damaged", "bomb": "is not kept"}
    assert words[kind] in sentence(lambda: fetch.fetch("cifar10"))
    left = {path.name for path in (home / "cache" / "cifar-10-batches-bin").iterdir()}
    assert left <= {".c.tar.gz", *CIFAR_FILES}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to_is_named(home: Path) -> None:
    (home / "cache").mkdir(mode=0o500)
    assert "cannot be written to" in sentence(lambda: fetch.fetch("cifar10"))


def test_a_file_in_the_place_of_the_folder_is_named(home: Path) -> None:
    (home / "cache").write_bytes(b"")
    assert "cannot be written to" in sentence(lambda: fetch.fetch("cifar10"))


def test_a_stream_is_written_whole_or_not_at_all(home: Path) -> None:
    class Broken(io.BytesIO):
        def read(self, *_: object) -> bytes:
            raise EOFError("cut")

    with pytest.raises(EOFError):
        fetch._write(Broken(), home / "x")
    assert not list(home.iterdir())


def test_names_of_letters_are_those_of_emnist() -> None:
    assert LETTER_FILES[0] == LETTERS.format("train", "images-idx3")
