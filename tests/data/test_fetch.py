"""Files are found where they should be, and downloaded whole or not at all."""

from __future__ import annotations

import contextlib
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
from typing import ClassVar

import pytest

from fedsoft.data import download, fetch, registry
from fedsoft.errors import InputError
from tests.pictures import LETTERS, idx, numbered, write_cifar, write_letters, write_mnist

LETTER_FILES = registry.collection("letters").files
CIFAR_FILES = registry.collection("cifar10").files


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No files anywhere, and a cache of our own."""
    monkeypatch.delenv(registry.VARIABLE, raising=False)
    monkeypatch.setattr(registry, "cache", lambda: tmp_path / "cache")
    return tmp_path


def sentence(action: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        action()
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def found_in(name: str, data_dir: Path | None = None) -> Path:
    return next(iter(registry.find(registry.collection(name), data_dir).values())).parent


# What is known


def test_addresses_and_checksums_have_their_form() -> None:
    for wanted in registry.COLLECTIONS.values():
        if not wanted.downloads:
            assert wanted.by_hand
            continue
        assert sorted(file for part in wanted.downloads for file in part.files) == sorted(wanted.files)
        for part in wanted.downloads:
            if isinstance(part, registry.Package):
                assert re.fullmatch(r"[a-z-]+==[0-9.]+", part.requirement)
                assert all(re.fullmatch(r"[0-9a-f]{32}", md5) for _, md5 in part.md5s)
                continue
            assert part.url.startswith("https://")
            assert re.fullmatch(r"[0-9a-f]{32}", part.md5)


def test_an_unknown_name_gets_the_nearest_one() -> None:
    assert "did you mean 'letters'" in sentence(lambda: fetch.load("leters"))


# Finding


def test_the_order_is_data_dir_then_the_variable_then_the_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_letters(home / "cache" / "letters", 1, 1)
    assert found_in("letters") == home / "cache" / "letters"
    write_letters(home / "variable" / "letters", 1, 1)
    monkeypatch.setenv(registry.VARIABLE, str(home / "variable"))
    assert found_in("letters") == home / "variable" / "letters"
    assert found_in("letters", home / "given") == home / "variable" / "letters"
    write_letters(home / "given", 1, 1)
    assert found_in("letters", home / "given") == home / "given"


def test_subfolders_are_looked_into_by_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.VARIABLE, str(home))
    write_cifar(home / "cifar-10-batches-bin", 10)
    write_mnist(home / "mnist")
    assert found_in("cifar10") == home / "cifar-10-batches-bin"
    assert found_in("mnist") == home / "mnist"
    assert found_in("cifar10", home / "cifar-10-batches-bin") == home / "cifar-10-batches-bin"


def test_mnist_is_not_taken_for_fashion(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Their files have the same names: only somebody who says so gets a folder without their names.
    write_mnist(home)
    monkeypatch.setenv(registry.VARIABLE, str(home))
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
    monkeypatch.setenv(registry.VARIABLE, str(home / "whole"))
    assert found_in("letters", home / "half") == home / "whole"


def test_a_missing_file_is_named_with_where_it_was_looked_for_and_how_to_get_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(registry.VARIABLE, str(home / "variable"))
    write_letters(home / "given", 1, 1)
    (home / "given" / LETTER_FILES[2]).unlink()
    text = sentence(lambda: fetch.load("letters", home / "given"))
    assert f"file '{LETTER_FILES[2]}' is missing" in text
    for place in (home / "given", home / "variable", home / "cache" / "letters"):
        assert f"'{place}'" in text
    assert "run 'fedsoft data fetch letters'" in text
    assert "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip" in text


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
    small = replace(registry.collection("mnist"), counts=(20, 10))
    monkeypatch.setitem(registry.COLLECTIONS, "mnist", small)
    assert "not the published bytes (repacked, or changed): train-images" in fetch.check("mnist", home).verdict
    right = tuple(replace(part, md5=md5(home / part.files[0])) for part in small.downloads)
    monkeypatch.setitem(registry.COLLECTIONS, "mnist", replace(small, downloads=right))
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


@contextlib.contextmanager
def serving(handler: type[Quiet], home: Path) -> Iterator[str]:
    (home / "www").mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(home / "www"))) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()
        thread.join()


@pytest.fixture
def server(home: Path) -> Iterator[str]:
    with serving(Quiet, home) as url:
        yield url


def publish(monkeypatch: pytest.MonkeyPatch, name: str, url: str, archive: Path, checksum: str | None = None) -> None:
    """Make an archive on this machine the address of a data set."""
    wanted = registry.collection(name)
    part = replace(wanted.downloads[0], url=f"{url}/{archive.name}", md5=checksum or md5(archive))
    monkeypatch.setitem(registry.COLLECTIONS, name, replace(wanted, downloads=(part,)))


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
    wanted = registry.collection("mnist")
    parts = tuple(
        replace(part, url=f"{server}/{part.files[0]}", md5=md5(home / "www" / part.files[0]))
        for part in wanted.downloads
    )
    monkeypatch.setitem(registry.COLLECTIONS, "mnist", replace(wanted, downloads=parts))
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


class Moody(Quiet):
    """Sends half of what it promised and hangs up, as often as told; knows ranges where told."""

    breaks: ClassVar[int] = 1
    ranges: ClassVar[bool] = True
    asked: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        type(self).asked.append(wanted)
        content = (Path(self.directory) / self.path.lstrip("/")).read_bytes()
        first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.ranges else 0
        if first >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        rest = content[first:]
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        if type(self).breaks:
            type(self).breaks -= 1
            rest = rest[: len(rest) // 2]
        self.wfile.write(rest)
        self.close_connection = True


@pytest.fixture
def moody(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    Moody.breaks, Moody.ranges, Moody.asked = 1, True, []
    monkeypatch.setattr(download, "BLOCK", 16)
    with serving(Moody, home) as url:
        yield url


def small_archive(home: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> int:
    write_cifar(home / "made", 10)
    archive = home / "www" / "c.tar.gz"
    tar(archive, home / "made")
    publish(monkeypatch, "cifar10", url, archive)
    return archive.stat().st_size


def test_a_download_that_breaks_goes_on_where_it_stopped(
    home: Path, moody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = small_archive(home, moody, monkeypatch)
    Moody.breaks = 3
    told: list[tuple[int, int | None]] = []
    assert fetch.fetch("cifar10", progress=lambda url, done, total: told.append((done, total))).train == 50
    done, asked = 0, []
    for _ in range(3):
        done += (size - done) // 2 // 16 * 16
        asked.append(f"bytes={done}-")
    assert Moody.asked == [None, *asked]
    assert told[0] == (0, None)
    assert told[-1] == (size, size)
    assert told == sorted(told, key=lambda at: at[0])
    assert sorted(path.name for path in (home / "cache" / "cifar-10-batches-bin").iterdir()) == sorted(CIFAR_FILES)


def test_a_server_that_knows_no_ranges_begins_anew(home: Path, moody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small_archive(home, moody, monkeypatch)
    Moody.ranges = False
    assert fetch.fetch("cifar10").train == 50
    assert len(Moody.asked) == 2


def test_what_was_cut_off_is_kept_for_the_next_time(home: Path, moody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    size = small_archive(home, moody, monkeypatch)
    (home / "cache" / "cifar-10-batches-bin").mkdir(parents=True)
    kept = home / "cache" / "cifar-10-batches-bin" / ".c.tar.gz.part"
    kept.write_bytes((home / "www" / "c.tar.gz").read_bytes()[:100])
    wanted = registry.collection("cifar10")
    gone = replace(wanted.downloads[0], url="http://127.0.0.1:1/c.tar.gz")
    with monkeypatch.context() as patched:
        patched.setitem(registry.COLLECTIONS, "cifar10", replace(wanted, downloads=(gone,)))
        assert "try again, it goes on where it stopped, or" in sentence(lambda: fetch.fetch("cifar10"))
    assert kept.stat().st_size == 100
    Moody.breaks = 0
    assert fetch.fetch("cifar10").train == 50
    assert Moody.asked == ["bytes=100-"]
    assert not kept.exists()
    assert size > 100


@pytest.mark.parametrize("excess", [0, 5])
def test_a_part_of_another_file_is_thrown_away(
    home: Path, moody: str, monkeypatch: pytest.MonkeyPatch, excess: int
) -> None:
    """As long as the file or longer: the server has nothing to add."""
    size = small_archive(home, moody, monkeypatch)
    (home / "cache" / "cifar-10-batches-bin").mkdir(parents=True)
    kept = home / "cache" / "cifar-10-batches-bin" / ".c.tar.gz.part"
    kept.write_bytes(bytes(size + excess))
    Moody.breaks = 0
    assert fetch.fetch("cifar10").train == 50
    assert Moody.asked == [f"bytes={size + excess}-", None]


def test_a_shorter_part_of_another_file_fails_once(home: Path, moody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small_archive(home, moody, monkeypatch)
    (home / "cache" / "cifar-10-batches-bin").mkdir(parents=True)
    (home / "cache" / "cifar-10-batches-bin" / ".c.tar.gz.part").write_bytes(bytes(100))
    Moody.breaks = 0
    assert "nothing was kept" in sentence(lambda: fetch.fetch("cifar10"))
    assert not list((home / "cache" / "cifar-10-batches-bin").iterdir())
    assert fetch.fetch("cifar10").train == 50


def test_a_download_without_end_is_cut_off(home: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "www" / "c.tar.gz").write_bytes(bytes(2000))
    monkeypatch.setattr(download, "DOWNLOAD_LIMIT", 1000)
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
        monkeypatch.setattr(download, "MEMBER_LIMIT", 1000)
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
        download._write(Broken(), home / "x")
    assert not list(home.iterdir())


def test_names_of_letters_are_those_of_emnist() -> None:
    assert LETTER_FILES[0] == LETTERS.format("train", "images-idx3")
