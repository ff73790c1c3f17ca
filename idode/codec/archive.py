"""Files to an archive: pixels of equal shape in blocks, everything else as it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from idode.codec import ordinary
from idode.codec.blocks import MAX_BLOCK_BYTES
from idode.codec.bytestream import digest
from idode.codec.coding import Model, header_of
from idode.codec.container import ArchiveWriter, Place
from idode.codec.files import Content, check_name, pack
from idode.codec.jobs import Encode, Progress, run_jobs
from idode.codec.recipes import Recipe
from idode.errors import InputError

__all__ = [
    "BLOCK",
    "BLOCKS",
    "FILES",
    "OTHER_KIND",
    "STEPS",
    "Group",
    "Summary",
    "arrange",
    "write_archive",
]

STEPS = 25  # of the diffusion, by default
BLOCK = 1000  # images of a block, by default
BLOCKS, FILES = b"B", b"F"  # kinds of sections
OTHER_KIND = "no image has the size, channels and levels of the model: ordinary coders are used"

Shape = tuple[int, int, int]


@dataclass
class Group:
    """Images of one shape, in their order."""

    shape: Shape
    modelled: bool
    images: list[NDArray[np.uint8]] = field(default_factory=list)  # (n, C, H, W) each
    count: int = 0

    def add(self, images: NDArray[np.uint8]) -> int:
        """Append images ``(n, C, H, W)``; the number of the first."""
        self.images.append(images)
        self.count += len(images)
        return self.count - len(images)

    def block_size(self, wanted: int) -> int:
        """Images of a block: as wanted, or as many as the limit of memory allows."""
        return max(1, min(wanted, MAX_BLOCK_BYTES // math.prod(self.shape)))

    def blocks(self, wanted: int) -> Iterator[NDArray[np.uint8]]:
        """The images of each block."""
        everything = self.images[0] if len(self.images) == 1 else np.concatenate(self.images)
        size = self.block_size(wanted)
        for lo in range(0, self.count, size):
            yield everything[lo : lo + size]


@dataclass(frozen=True)
class Summary:
    """What was compressed."""

    files: int
    images: int
    modelled: int  # of the images, those of the shape of the model
    values: int  # in all images
    bytes_before: int  # of the files
    bytes_after: int  # of the archive

    @property
    def bits_per_dim(self) -> float:
        """Bits of the whole archive, everything counted, per value of an image."""
        return 8 * self.bytes_after / max(self.values, 1)


def write_archive(
    file: IO[bytes],
    contents: Sequence[Content],
    model: Model,
    *,
    steps: int,
    block: int = BLOCK,
    jobs: int = 1,
    verify: bool = True,
    progress: Progress = lambda count: None,
    begin: Callable[[int], None] = lambda work: None,
    cache: Path | None = None,
    coded: Iterator[bytes] | None = None,
) -> Summary:
    """Compress files into an open file.

    Args:
        file: Open for writing.
        contents: Files with different names.
        model: Of images of one shape; other images go to ordinary coders.
        steps: Steps of the diffusion.
        block: Images that are decoded together.
        jobs: Processes.
        verify: Decode every block before it is kept.
        progress: Called with the number of images that went through.
        begin: Called before with the number there will be.
        cache: Folder of finished blocks, to resume from.
        coded: The blocks, where they are known already.
    """
    _check_names(contents)
    scheme = model.scheme(steps)
    groups, kept, placed = arrange(contents, model)
    work = [
        Encode(scheme if g.modelled else None, images, verify)
        for g in groups
        for images in g.blocks(block)
    ]
    begin(sum(job.work for job in work))
    needs_model = any(g.modelled for g in groups)
    writer = ArchiveWriter(file, header_of(model, scheme) if needs_model else {})
    coded = coded or _coded(work, min(jobs, len(work)), progress, cache)
    tables = []
    for group in groups:
        size = group.block_size(block)
        places = [
            writer.section(BLOCKS, next(coded)) for _ in range(math.ceil(group.count / size))
        ]
        tables.append(
            {"shape": group.shape, "count": group.count, "block": size, "blocks": places,
             "model": group.modelled}
        )  # fmt: skip
    recipes: list[Recipe] = []
    entries: list[dict[str, Any]] = []
    for content in contents:
        if content.name in kept:
            place = writer.section(FILES, pack(content.data))
            entries.append(_file_entry(content, place))
        else:
            entries.append(_pixel_entry(content, placed[content.name], recipes))
    size = writer.finish({"groups": tables, "recipes": recipes, "entries": entries})
    images = [c.images for c in contents if c.images is not None and c.name not in kept]
    return Summary(
        files=len(contents),
        images=sum(map(len, images)),
        modelled=sum(g.count for g in groups if g.modelled),
        values=sum(x.size for x in images),
        bytes_before=sum(_length(c) for c in contents),
        bytes_after=size,
    )


def _check_names(contents: Sequence[Content]) -> None:
    names = [check_name(c.name) for c in contents]
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise InputError(f"two files are called {twice}: rename one")


def arrange(
    contents: Sequence[Content], model: Model
) -> tuple[list[Group], set[str], dict[str, tuple[int, int, int]]]:
    """Groups of images; names of files kept as bytes; group, first and count of the others."""
    groups: dict[tuple[Shape, bool], Group] = {}
    kept: set[str] = set()
    placed: dict[str, tuple[int, int, int]] = {}
    for content in contents:
        if content.images is None:
            kept.add(content.name)
            continue
        c, h, w = content.images.shape[1:]
        fits = (c, h, w) == model.shape and int(content.images.max()) < model.levels
        if not fits and content.data and _smaller_as_bytes(content):
            kept.add(content.name)
            continue
        key = (c, h, w), fits
        group = groups.setdefault(key, Group(*key))
        number = list(groups).index(key)
        placed[content.name] = (number, group.add(content.images), len(content.images))
    return list(groups.values()), kept, placed


def _smaller_as_bytes(content: Content) -> bool:
    """Whether a file is no larger than its pixels by the best ordinary coder."""
    assert content.images is not None
    coded = sum(len(ordinary.encode(image)[1]) for image in content.images)
    return len(pack(content.data)) <= coded


def _coded(
    work: Sequence[Encode], jobs: int, progress: Progress, cache: Path | None
) -> Iterator[bytes]:
    """The bytes of every block, those that are known from before among them."""
    if cache is None:
        yield from run_jobs(work, jobs, progress)
        return
    files = [cache / f"{_key(job)}.block" for job in work]
    fresh = run_jobs(
        (j for j, f in zip(work, files, strict=True) if not f.exists()), jobs, progress
    )
    known = [f.exists() for f in files]
    from idode.storage import write_atomically

    for job, file, there in zip(work, files, known, strict=True):
        if there:
            progress(job.work)
        else:
            write_atomically(file, next(fresh))
        yield file.read_bytes()


def _key(job: Encode) -> str:
    plan = b"" if job.scheme is None else job.scheme.plan.hash().encode()
    return digest(plan, np.ascontiguousarray(job.images).tobytes()).hex()


def _file_entry(content: Content, place: Place) -> dict[str, Any]:
    check = digest(content.data).hex()
    return {"name": content.name, "file": place, "size": len(content.data), "check": check}


def _pixel_entry(
    content: Content, place: tuple[int, int, int], recipes: list[Recipe]
) -> dict[str, Any]:
    assert content.recipe is not None
    if content.recipe not in recipes[-1:]:  # equal recipes follow each other
        recipes.append(content.recipe)
    entry = {"name": content.name, "pixels": place, "recipe": len(recipes) - 1}
    if not content.exact:
        return {**entry, "exact": False}
    # An array from memory has no bytes to compare, and its file needs no encoder.
    return {**entry, "check": digest(content.data).hex()} if content.data else entry


def _length(content: Content) -> int:
    return len(content.data) if content.data or content.images is None else content.images.size
