"""Blocks coded and decoded by processes that measure their own time (benchmarks/codec.py).

    python benchmarks/codec_blocks.py ARCHIVE --jobs 2 --cache FOLDER

decodes an archive in this new process and prints, as JSON, the hash of the pixels of each of its
blocks. Seconds are those of the work alone, without the start of Python and of the workers.
Finished blocks are kept in the cache, with what they took, so a run that was stopped resumes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idode.codec.coding import model_for
from idode.codec.extraction import Archive
from idode.codec.jobs import Encode, run_jobs
from idode.storage import write_atomically


@dataclass(frozen=True)
class Timed:
    """A job, and what it takes in the process that does it."""

    job: Any

    def run(self, progress):
        """The result, and its seconds: of the clock, and of the processor."""
        began, cpu = time.perf_counter(), time.process_time()
        result = self.job.run(progress)
        took = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
        return result, took


def encode_blocks(scheme, blocks, cache, jobs, each):
    """Files of the coded blocks and what each took; ``each`` is called as they are finished."""
    names = [hashlib.sha256(scheme.plan.hash().encode() + b.tobytes()) for b in blocks]
    files = [cache / f"{i}-{n.hexdigest()[:16]}" for i, n in enumerate(names)]
    took = [f.with_suffix(".encoded") for f in files]
    waiting = [i for i, t in enumerate(took) if not t.exists()]
    made = run_jobs(
        (Timed(Encode(scheme, blocks[i], False)) for i in waiting), jobs, lambda n: None
    )
    for i, (data, seconds) in zip(waiting, made, strict=True):
        write_atomically(files[i], data)
        write_atomically(took[i], json.dumps({**seconds, "images": len(blocks[i])}))
        each([(f, b) for f, b, t in zip(files, blocks, took, strict=True) if t.exists()])
    return files, [json.loads(t.read_text()) for t in took]


def decode_archive(path, jobs, cache):
    """The hash of every block's pixels, and what its decoding took."""
    with path.open("rb") as file:
        archive = Archive(file, str(path))
        work = list(archive.jobs(archive.entries, lambda: model_for(archive.model_name)))
    files = [cache / f"{hashlib.sha256(job.data).hexdigest()[:16]}.decoded" for job in work]
    waiting = [i for i, f in enumerate(files) if not f.exists()]
    made = run_jobs((Timed(work[i]) for i in waiting), jobs, lambda n: None)
    for i, (images, seconds) in zip(waiting, made, strict=True):
        found = {**seconds, "images": len(images), "pixels": pixels_hash(images)}
        write_atomically(files[i], json.dumps(found))
    return [json.loads(f.read_text()) for f in files]


def pixels_hash(images):
    """SHA-256 of images, their shape included."""
    return hashlib.sha256(f"{images.shape}".encode() + images.tobytes()).hexdigest()


def speed(way, took, jobs):
    """Images a second of so many processes at once, and processor seconds of an image."""
    images = sum(t["images"] for t in took)
    return {
        f"{way}_images_per_second": jobs * images / sum(t["seconds"] for t in took),
        # Of one core, whatever else the machine does meanwhile.
        f"{way}_cpu_seconds_per_image": sum(t["cpu"] for t in took) / images,
    }


def main():
    """Decode an archive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cache", type=Path, required=True)
    args = parser.parse_args()
    print(json.dumps(decode_archive(args.archive, args.jobs, args.cache)))


if __name__ == "__main__":
    main()
