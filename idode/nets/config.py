"""Settings of networks as plain values: reading a configuration needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from idode.dataclass_io import at_least, at_most, new_field
from idode.errors import InputError

__all__ = ["NO_PATH", "CustomNetConfig", "MLPConfig", "PathConfig", "UNetConfig"]

# Far above any network, and small enough that its size can be computed at once.
MAX_DEPTH, MAX_WIDTH, MAX_LEVELS = 1000, 10**9, 2**32
PLACES = ("middle", "everywhere", "none")


@dataclass(frozen=True)
class UNetConfig:
    """What a U-Net is made of; the defaults are the paper's network for CIFAR-10.

    Args:
        channels: Colours of an image.
        levels: Grey levels of a pixel, which set the Fourier frequencies.
        width: Channels inside.
        depth: Residual blocks on the way down; there is one more on the way up.
        attention: ``middle`` (once), ``everywhere`` (also after every block) or ``none``.
        dropout: Rate inside each block, while training.
        groups: Groups of each normalisation. Keep it below ``width``: with one channel a group,
            normalisation subtracts what the condition adds, and the network is blind to time.
        fourier: Whether sines and cosines of x are given beside x.
        flag: Whether the augmentation flag is an input.
        halvings: How often the way down halves the image, evenly spread over the depth.
        checkpointing: Trade time for memory that grows with the square root of the depth.
        fade: Time by which the sines and cosines have faded to 1/e; 0 keeps them, as the paper.
    """

    channels: int = 3
    levels: int = 256
    width: int = 128
    depth: int = 32
    attention: str = "middle"
    dropout: float = 0.1
    groups: int = 32
    fourier: bool = True
    flag: bool = True
    halvings: int = 0
    checkpointing: bool = False
    fade: float = new_field(0.0)

    def __post_init__(self) -> None:
        at_least(self, channels=1, levels=2, width=4, depth=1, groups=1, halvings=0)
        at_most(self, depth=MAX_DEPTH, width=MAX_WIDTH, levels=MAX_LEVELS, channels=MAX_WIDTH)
        if self.width % 2 or self.width % self.groups:
            raise InputError(
                f"width={self.width}: must be even and a multiple of groups={self.groups}"
            )
        if self.attention not in PLACES:
            raise InputError(f"attention={self.attention!r}: must be one of {', '.join(PLACES)}")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout={self.dropout}: must be at least 0 and less than 1")
        at_least(self, fade=0)
        if self.fade and not self.fourier:
            raise InputError(f"fade={self.fade:g}: needs fourier=true, whose features it fades")
        if self.halvings > self.depth:
            raise InputError(f"halvings={self.halvings}: must be at most depth={self.depth}")


@dataclass(frozen=True)
class MLPConfig:
    """What a network for vectors is made of.

    Args:
        features: Length of a vector.
        levels: Levels of an entry, which set the Fourier frequencies; unused without them.
        width: Units inside.
        depth: Residual blocks.
        dropout: Rate inside each block, while training.
        fourier: Whether sines and cosines of x are given beside x: for discrete data.
        flag: Whether the augmentation flag is an input.
        fade: Time by which the sines and cosines have faded to 1/e; 0 keeps them.
    """

    features: int
    levels: int = 256
    width: int = 128
    depth: int = 3
    dropout: float = 0.0
    fourier: bool = False
    flag: bool = False
    fade: float = new_field(0.0)

    def __post_init__(self) -> None:
        at_least(self, features=1, levels=2, width=4, depth=1)
        at_most(self, depth=MAX_DEPTH, width=MAX_WIDTH, levels=MAX_LEVELS)
        if self.width % 2:
            raise InputError(f"width={self.width}: must be even")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout={self.dropout}: must be at least 0 and less than 1")
        at_least(self, fade=0)
        if self.fade and not self.fourier:
            raise InputError(f"fade={self.fade:g}: needs fourier=true, whose features it fades")


@dataclass(frozen=True)
class PathConfig:
    """Networks that give each dimension a noise level of its own (MuLAN).

    Args:
        bits: Length of an image's code, which these levels depend on; 0 for one level for all.
        width: Hidden units of the network that writes the code, and of the one that reads it.
    """

    bits: int = 0
    width: int = 256

    def __post_init__(self) -> None:
        at_least(self, bits=0, width=1)
        at_most(self, bits=MAX_WIDTH, width=MAX_WIDTH)


NO_PATH = PathConfig()


@dataclass(frozen=True)
class CustomNetConfig:
    """A network of the user's own: only its class is recorded, the weights are in the run.

    Args:
        name: Qualified name of its class; an instance must be given to load the run.
    """

    name: str

    @classmethod
    def of(cls, net: object) -> CustomNetConfig:
        """The record of a network."""
        return cls(type(net).__qualname__)

    @property
    def flag(self) -> bool:
        """Whether it may take the augmentation flag: checked on the network itself, not here."""
        return True
