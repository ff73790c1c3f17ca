"""A download that resumes, is verified, and appears under its name only when complete."""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import TypeAlias

from idode.errors import InputError
from idode.storage import checksum as checksum_of

__all__ = ["Progress", "download"]

Progress: TypeAlias = Callable[[int, int | None], None]

BLOCK_BYTES = 1 << 18
ATTEMPTS = 5


def transfer(url: str, part: Path, progress: Progress, timeout: float) -> bool:
    """One request for what ``part`` still lacks; returns whether it is complete now."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        response: HTTPResponse = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        # 416: there is nothing beyond what we have, and the checksum tells whether that is right.
        if error.code == 416 and have:
            return True
        raise
    with response:
        resumed = response.status == 206
        done = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length is not None else None
        with part.open("ab" if resumed else "wb") as file:
            while block := response.read(BLOCK_BYTES):
                file.write(block)
                done += len(block)
                progress(done, total)
    return total is None or done >= total


def download(
    url: str,
    target: Path,
    checksum: str,
    progress: Progress = lambda done, total: None,
    timeout: float = 5.0,
) -> None:
    """Fetch ``url`` to ``target``; ``checksum`` is ``algorithm:hexdigits``.

    What arrives is kept in ``target.part``, from where a later call goes on. A transfer that
    breaks is taken up again as long as attempts bring bytes; a host that does not answer raises
    ``OSError`` within ``timeout`` seconds, a wrong checksum removes the part and raises
    :class:`~idode.errors.InputError`.
    """
    part = target.with_name(target.name + ".part")
    for attempt in range(ATTEMPTS):
        before = part.stat().st_size if part.exists() else 0
        try:
            if transfer(url, part, progress, timeout):
                break
        except urllib.error.HTTPError:
            raise
        except (OSError, HTTPException) as error:
            if not part.exists() or part.stat().st_size <= before:
                raise OSError(f"{url} does not answer ({error})") from error
        time.sleep(0.1 * attempt)
    else:
        raise OSError(f"{url} broke off {ATTEMPTS} times: run the command again to go on")
    algorithm, _, expected = checksum.partition(":")
    found = checksum_of(part, algorithm)
    if found != expected:
        part.unlink()
        raise InputError(
            f"{url} gave a file with {algorithm} {found} where {expected} is expected: it was "
            "removed, fetch again or from elsewhere"
        )
    os.replace(part, target)
