"""A seeded fuzzer for everything that reads files: each case is accepted or an ``InputError``.

``python tests/fuzzing.py --cases N --seed S [READER ...]`` makes N cases for each reader,
fewer for slow ones. A case is a valid file with a few mutations. It must end within 2 s of
processor time, and the process may not grow by more than 500 MB.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from idode.errors import InputError

Read = Callable[[bytes], object]

SECONDS, BYTES = 2.0, 500 << 20
HEAD = 4096  # bytes
INTERESTING = [0, 1, 2, 7, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**63 - 1]
TOKENS = [
    *(b"null", b"true", b"-1", b"1e999", b"NaN", b"[]", b"{}", b'""', b"0", b"1" + b"0" * 400),
    *(b"[" * 2000, b'"\\ud800"', b"\xff\xfe", b"\x1b[31m", b"\x00", b"\n", b"2147483648"),
]
VALUE = re.compile(rb'-?[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?|"[^"]*"|null|true|false')


@dataclass(frozen=True)
class Reader:
    """Valid files, and the function that reads one."""

    seeds: list[bytes]
    read: Read
    slow: int = 1  # only every so many-th case is made


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A copy with one to four changes."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        # Half of the changes hit the head, where large files say what they hold.
        place = rng.randrange(min(len(found), rng.choice([HEAD, len(found)])) + 1)
        kind = rng.randrange(10)
        if kind == 0:
            found[place : place + 1] = bytes([rng.randrange(256)])
        elif kind == 1 and found:
            found[min(place, len(found) - 1)] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del found[place : place + rng.choice([1, 2, 8, 100])]
        elif kind == 3:
            found[place:place] = rng.randbytes(rng.choice([1, 2, 8, 64]))
        elif kind == 4:
            width, order = rng.choice("BHIQ"), rng.choice("<>")
            size = struct.calcsize(width)
            number = rng.choice(INTERESTING) & (256**size - 1)
            found[place : place + size] = struct.pack(order + width, number)
        elif kind == 5:
            found[place : place + rng.choice([0, 1, 4, 10])] = rng.choice(TOKENS)
        elif kind == 6:
            start = rng.randrange(len(found) + 1)
            piece = found[start : start + rng.choice([4, 32, 512])]
            found[place:place] = piece * rng.choice([1, 2, 50])
        elif kind == 7:
            del found[place:]
        else:  # another value in JSON
            values = [match.span() for match in VALUE.finditer(found, place, place + HEAD)]
            if values:
                start, stop = rng.choice(values)
                found[start:stop] = rng.choice(TOKENS)
    return bytes(found)


def check(reader: Reader, data: bytes) -> str:
    """How the case ended, ``accepted`` or ``refused``; whatever else is raised is a defect."""
    began = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(data)
        outcome = "accepted"
    except InputError:
        outcome = "refused"
    spent = time.process_time() - began
    assert spent < SECONDS, f"took {spent:.1f} s"
    return outcome


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(
    name: str, reader: Reader, cases: int, seed: int, keep: Path | None = None
) -> Counter[str]:
    """Outcomes of so many cases; a failing one is kept as a file and raised."""
    rng = random.Random(f"{name} {seed}")
    counts: Counter[str] = Counter()
    for number in range(cases):
        data = mutated(rng.choice(reader.seeds), rng)
        before = peak_bytes()
        if keep is not None:
            (keep / f"{name}.case").write_bytes(data)  # for a crash of the whole process
        try:
            counts[check(reader, data)] += 1
            assert peak_bytes() - before < BYTES, "took more than 500 MB"
        except Exception as error:
            counts["failed"] += 1
            if keep is None:
                raise AssertionError(f"{name}, case {number} of seed {seed}: {data!r}") from error
            traceback.print_exc()
            (keep / f"{name}-{seed}-{number}.failed").write_bytes(data)
    return counts


def main() -> int:
    from fuzz_readers import readers

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("readers", nargs="*")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        print(
            "| reader | cases | accepted | refused | failed | CPU s |\n|---|---|---|---|---|---|"
        )
        for name, reader in readers(Path(scratch)).items():
            if args.readers and name not in args.readers:
                continue
            began = time.process_time()
            cases = args.cases // reader.slow
            counts = fuzz(name, reader, cases, args.seed, args.keep)
            failed += counts["failed"]
            row = [counts["accepted"], counts["refused"], counts["failed"]]
            row.append(round(time.process_time() - began))
            print("|", name, "|", cases, "|", " | ".join(map(str, row)), "|", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
