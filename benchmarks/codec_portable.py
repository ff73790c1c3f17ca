"""What a portable profile of the codec would cost: the network in 8-bit integers.

    python benchmarks/codec_portable.py --data cifar10 --images 64

Integers of 8 bits inside float32 have exact sums in any order, so every machine would compute the
same bits. This is the price: the SDE bound of the network with rounded weights and activations
over that of the network as it is, on the same images with the same noise. Weights have a scale
for each output channel, activations one for each layer, from training images. The first
convolution sees the image itself in two such numbers (15 bits) instead of one; ``wide`` layers
are those without a norm before them too (shortcuts of the residual stream).
"""

from __future__ import annotations

import argparse
import copy
import json

import numpy as np
import torch

import idode
from idode.data.loading import load
from idode.nets.layers import Conv

LEVELS = 127
MODELS = {"cifar10": "pretrained:cifar10-small", "fashion-mnist": "pretrained:fashion-mnist-small"}


def convolutions(net):
    """All of them by name."""
    return {name: m for name, m in net.named_modules() if isinstance(m, Conv)}


def largest_inputs(model, images, quantile):
    """The magnitude of the inputs of every convolution, at noise levels over the whole range."""
    seen = {}

    def watch(name):
        def hook(module, inputs):
            x = inputs[0].detach().abs().flatten()
            top = torch.quantile(x[:: max(1, len(x) // 200_000)], quantile)
            seen[name] = max(seen.get(name, 0.0), float(top))

        return hook

    hooks = [m.register_forward_pre_hook(watch(n)) for n, m in convolutions(model.net).items()]
    with torch.inference_mode():
        model.sde_bound(images, draws=16)
    for hook in hooks:
        hook.remove()
    return seen


def rounded(x, scale, levels):
    """The nearest multiple of the scale, up to so many of them."""
    return (x / scale).round().clamp(-levels, levels) * scale


def quantised(model, tops, wide):
    """The model with rounded weights and activations; ``wide`` layers get inputs of 15 bits."""
    changed = copy.deepcopy(model)
    for name, module in convolutions(changed.net).items():
        scale = module.weight.detach().abs().amax((1, 2, 3), keepdim=True) / LEVELS
        module.weight.data = rounded(module.weight.data, scale.clamp_min(1e-12), LEVELS)
        levels = LEVELS * 129 if name in wide else LEVELS

        def hook(module, inputs, step=tops[name] / levels, levels=levels):
            return (rounded(inputs[0], step, levels), *inputs[1:])

        module.register_forward_pre_hook(hook)
    return changed


def main():
    """Print the price of each choice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--draws", type=int, default=32)
    args = parser.parse_args()
    data = load(args.data)
    model = idode.load(MODELS[args.data.partition(":")[0]], device="cpu")
    images = np.array(data.test[: args.images])
    names = list(convolutions(model.net))
    streams = {names[0], *(n for n in names if "shortcut" in n)}
    exact = model.sde_bound(images, draws=args.draws).mean
    print(json.dumps({"images": len(images), "draws": args.draws, "sde_bound": exact}), flush=True)
    fitting = np.array(data.train[:32])
    largest = largest_inputs(model, fitting, 1.0)
    for quantile in (1.0, 0.9999, 0.999):
        # Layers that are wide have steps enough: nothing of them is cut off.
        tops = largest_inputs(model, fitting, quantile) | {n: largest[n] for n in streams}
        for label, wide in {"first": {names[0]}, "first and shortcuts": streams}.items():
            found = quantised(model, tops, wide).sde_bound(images, draws=args.draws).mean
            row = {"quantile": quantile, "wide": label, "sde_bound": found}
            print(json.dumps({**row, "price_percent": 100 * (found / exact - 1)}), flush=True)


if __name__ == "__main__":
    main()
