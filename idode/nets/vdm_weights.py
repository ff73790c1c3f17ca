"""The published weights of the U-Net: trees of flax arrays to our state dicts and back.

A checkpoint of the paper, or of plain variational diffusion models, is a tree with ``params``
and their moving average ``ema_params``; in each, ``score_model`` is the network and, if the
noise schedule was learned, ``gamma`` its parameters. Kernels are HWIO or in-by-out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from idode.errors import InputError
from idode.nets.config import UNetConfig
from idode.nets.flax_format import Tree, leaves
from idode.nets.unet import UNet

__all__ = ["from_state_dict", "infer_config", "learned_gamma_range", "to_state_dict"]

RENAMES = (
    (r"^time\.", ""),
    (r"^norm_out\.", "GroupNorm_0."),
    (r"^(down|up)\.(\d+)\.block\.", r"\1.block_\2/"),
    (r"^(down|up)\.(\d+)\.attention\.", r"\1.attn_\2/"),
    (r"^middle(\d)\.block\.", r"mid.block_\1/"),
    (r"^middle1\.attention\.", "mid.attn_1/"),
    (r"/norm1?\.", "/GroupNorm_0."),
    (r"/norm2\.", "/GroupNorm_1."),
    (r"/condition\.", "/cond_proj."),
    (r"/shortcut\.", "/nin_shortcut."),
    (r"/out\.", "/proj_out."),
)
MAX_DEPTH = 1000  # a file may claim any number of blocks for a few bytes each
SHOWN = 3  # names in an error message


def infer_config(tree: Tree, *, raw: bool = False, levels: int = 256) -> UNetConfig:
    """Width, depth, colours and inputs of the network in a checkpoint, from names and shapes.

    Neither dropout nor the number of grey levels leaves a trace in the weights: the first stays
    at the paper's default, the second is the caller's to say.
    """
    found = dict(leaves(_network(tree, raw=raw)))
    inputs, width = _kernel_shape(found, "conv_in/kernel", 4)[2:]
    channels = _kernel_shape(found, "conv_out/kernel", 4)[3]
    depth = len({name.split("/")[0] for name in found if name.startswith("down.block_")})
    if depth > MAX_DEPTH:
        raise InputError(f"the checkpoint has {depth} blocks: at most {MAX_DEPTH} are allowed")
    places = {"down.attn_0/q/kernel": "everywhere", "mid.attn_1/q/kernel": "middle"}
    config = UNetConfig(
        channels=channels,
        levels=levels,
        width=width,
        depth=depth,
        attention=next((place for name, place in places.items() if name in found), "none"),
        fourier=inputs != channels,
        flag=_kernel_shape(found, "dense0/kernel", 2)[0] != width,
    )
    _check(found, _published(config))
    return config


def to_state_dict(tree: Tree, config: UNetConfig, *, raw: bool = False) -> dict[str, Tensor]:
    """What ``UNet(config).load_state_dict`` takes: the averaged weights, or the ``raw`` ones."""
    found, published = dict(leaves(_network(tree, raw=raw))), _published(config)
    _check(found, published)
    state = {}
    for name, (ours, tensor) in published.items():
        array = np.array(found[name], dtype=np.float32)  # a copy: the file's bytes are read-only
        if not np.isfinite(array).all():
            raise InputError(f"the array {name} is not finite everywhere: use another checkpoint")
        turned = array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T
        state[ours] = torch.from_numpy(turned.copy()).reshape(tensor.shape)
    return state


def from_state_dict(state: Mapping[str, Tensor], config: UNetConfig) -> Tree:
    """The tree ``{"score_model": ...}`` of a state dict, the inverse of :func:`to_state_dict`."""
    tree: Tree = {}
    for name, (ours, tensor) in sorted(_published(config).items()):
        array = state[ours].detach().float().cpu().numpy()
        if len(_published_shape(name, tensor)) == 4:
            array = array.transpose(2, 3, 1, 0)
        else:
            array = array.reshape(array.shape[:2]).T
        *path, last = name.split("/")
        here = tree
        for part in path:
            here = here.setdefault(part, {})
        here[last] = array.copy()
    return {"score_model": tree}


def learned_gamma_range(tree: Tree, *, raw: bool = False) -> tuple[float, float] | None:
    """Ends of a learned noise schedule, gamma(0) and gamma(1); None if it was fixed.

    Plain variational diffusion models learn a line, b + abs(w) t, or a monotone network of three
    layers. Their U-Net still scales its clock by the two constants of the training settings
    (-13.3 and 5 in all published ones), which no checkpoint holds.
    """
    found = dict(leaves(_branch(_weights(tree, raw=raw), "gamma")))
    if not found:
        return None
    if not all(isinstance(value, np.ndarray) for value in found.values()):
        raise InputError(f"in the checkpoint's noise schedule, {_some(found)} are not numbers")
    values = {name: value.astype(np.float64) for name, value in found.items()}
    if {name: v.shape for name, v in values.items()} == {"b": (1,), "w": (1,)}:
        ends = [values["b"].item() + abs(values["w"].item()) * t for t in (0.0, 1.0)]
    elif set(values) == {"l1/bias", "l1/kernel", "l2/bias", "l2/kernel", "l3/kernel"}:
        bias1, kernel1, bias2, kernel2, kernel3 = (values[name].ravel() for name in sorted(values))
        if not (bias1.size == kernel1.size == 1 and bias2.size == kernel2.size == kernel3.size):
            raise InputError("the layers of the checkpoint's noise schedule do not fit together")
        line = [(bias1 + np.abs(kernel1) * t).item() for t in (0.0, 1.0)]
        hidden = [np.tanh((bias2 + np.abs(kernel2) * s) / 2) for s in (-1.0, 1.0)]
        ends = [a + float(h @ np.abs(kernel3)) / h.size for a, h in zip(line, hidden, strict=True)]
    else:
        raise InputError(f"the checkpoint's noise schedule has {_some(found)}: none we know")
    if not (np.isfinite(ends).all() and ends[0] < ends[1]):
        raise InputError(f"the checkpoint's noise schedule runs from {ends[0]:g} to {ends[1]:g}")
    return ends[0], ends[1]


def _weights(tree: Tree, *, raw: bool) -> Tree:
    """The wanted set of weights of a checkpoint, or a tree that already is one."""
    if "score_model" in tree:
        return tree
    wanted = "params" if raw else "ema_params"
    weights = tree.get(wanted)
    if not isinstance(weights, dict) or not isinstance(weights.get("score_model"), dict):
        raise InputError(
            f"the checkpoint has {_some(tree)} and no {wanted}/score_model: "
            "give one of the paper's or of variational diffusion models"
        )
    return weights


def _network(tree: Tree, *, raw: bool) -> Tree:
    weights = _weights(tree, raw=raw)
    if others := weights.keys() - {"score_model", "gamma"}:
        raise InputError(f"beside score_model and gamma the checkpoint has {_some(others)}")
    return _branch(weights, "score_model")


def _branch(weights: Tree, name: str) -> Tree:
    branch = weights.get(name, {})
    if not isinstance(branch, dict):
        raise InputError(f"{name} in the checkpoint is not a tree of arrays")
    return branch


def _published(config: UNetConfig) -> dict[str, tuple[str, Tensor]]:
    """Published name of every parameter, with our name and a tensor of our shape."""
    if (config.groups, config.halvings, config.fade) != (32, 0, 0):
        raise InputError(
            f"groups={config.groups}, halvings={config.halvings}, fade={config.fade:g}: the "
            "published format holds only networks with 32, 0 and 0"
        )
    with torch.device("meta"):
        state = UNet(config).state_dict()
    published = {}
    for ours, tensor in state.items():
        name = ours
        for pattern, replacement in RENAMES:
            name = re.sub(pattern, replacement, name)
        layer, _, kind = name.rpartition(".")
        if kind == "weight":
            kind = "scale" if tensor.ndim == 1 else "kernel"
        published[f"{layer}/{kind}"] = (ours, tensor)
    return published


def _published_shape(name: str, tensor: Tensor) -> tuple[int, ...]:
    if tensor.ndim == 4 and not name.endswith("nin_shortcut/kernel"):
        return tuple(tensor.shape[axis] for axis in (2, 3, 1, 0))
    return tuple(tensor.shape[:2][::-1])


def _kernel_shape(found: Tree, name: str, axes: int) -> tuple[int, ...]:
    shape = np.shape(found.get(name, ()))
    if len(shape) != axes:
        raise InputError(f"the checkpoint has no {name} of {axes} axes: is it a U-Net's?")
    return shape


def _check(found: Tree, published: Mapping[str, tuple[str, Tensor]]) -> None:
    """Refuse a network that is not exactly the expected one, saying where it differs."""
    faults = []
    if missing := published.keys() - found.keys():
        faults.append(f"it lacks {_some(missing)}")
    if unexpected := found.keys() - published.keys():
        faults.append(f"it has besides {_some(unexpected)}")
    shapes = []
    for name in sorted(published.keys() & found.keys()):
        wanted, value = _published_shape(name, published[name][1]), found[name]
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            faults.append(f"{name} is not an array of floating-point numbers")
        elif value.shape != wanted:
            shapes.append(f"{name} {value.shape} instead of {wanted}")
    if shapes:
        faults.append(f"shapes differ: {_some(shapes, '; ')}")
    if faults:
        raise InputError(f"the checkpoint is not the expected U-Net: {', and '.join(faults[:4])}")


def _some(names: Iterable[str], comma: str = ", ") -> str:
    listed = sorted(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return comma.join(name[:80] for name in listed[:SHOWN]) + more if listed else "nothing"
