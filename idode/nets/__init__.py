"""Networks: ``net(x, t, flag)`` with x of shape ``(B, *)``, the time already scaled to [0, 1].

A network knows nothing of schedules: whoever owns one scales its clock. All start as the
identity, and all take their random numbers from the generator they are given.
"""

from idode.nets.layers import use_fast_backward
from idode.nets.mlp import MLP, MLPConfig
from idode.nets.unet import UNet, UNetConfig

__all__ = ["MLP", "MLPConfig", "UNet", "UNetConfig", "use_fast_backward"]
