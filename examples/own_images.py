"""Your own images: train on a folder, find its most and least likely pictures, draw new ones.

    python examples/own_images.py [FOLDER] [--size 12] [--fast] [--out runs/own_images]

The cells (``# %%``) run one by one in editors that know them. Without a folder a small one is
made: grey discs and bars for training, and among the test images three that do not belong.
"""

# %% What is asked for

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

import idode
from idode.data import load
from idode.ode.adams import Adams
from idode.sampling.dpm import DPM
from idode.sampling.pictures import grid, png

parser = argparse.ArgumentParser(description="Likelihoods and samples of a folder of images.")
parser.add_argument("folder", nargs="?", type=Path, help="of images; made if none is given")
parser.add_argument("--size", type=int, default=12, help="images are scaled to this side [12]")
parser.add_argument("--out", type=Path, default=Path("runs/own_images"))
parser.add_argument("--fast", action="store_true", help="seconds, and a poor model")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

# %% A folder of images, if there is none
# Sub-folders called train and test are the two splits; without them every tenth image is kept
# for testing. Whatever Pillow can open will do.

ODD = 3  # the last test images


def picture(draw: np.random.Generator) -> Image.Image:
    """A disc or a bar, somewhere, in some grey on black."""
    image = Image.new("L", (24, 24), 0)
    x, y, r = (int(draw.integers(*ends)) for ends in ((7, 17), (7, 17), (4, 7)))
    box = (x - r, y - r, x + r, y + r) if draw.random() < 0.5 else (x - 2, y - r, x + 2, y + r)
    shape = ImageDraw.Draw(image)
    (shape.ellipse if box[0] == x - r else shape.rectangle)(box, int(draw.integers(120, 250)))
    return image


def make_folder(folder: Path) -> Path:
    """Training and test images, and some noise at the end of the test images."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 400), ("test", 29)):
        (folder / split).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            picture(draw).save(folder / split / f"{i:04d}.png")
    for i in range(ODD):
        noise = draw.integers(0, 256, (24, 24), dtype=np.uint8)
        Image.fromarray(noise).save(folder / "test" / f"odd{i}.png")
    return folder


folder = args.folder or make_folder(args.out / "images")
data = load(f"folder:{folder}?size={args.size}", root=args.out / "prepared")
print(data.identity)

# %% Train
# Colours, levels and shape of the network follow the data; everything else is the preset's, or
# changed by name. `idode train digits --data folder:PATH?size=12 --out RUN` does the same. After
# an interruption (Ctrl-C), running this cell again resumes.

settings = ["train.batch_size=32", "net.width=16", "net.depth=1"] if args.fast else []
steps = 100 if args.fast else 1500
print(f"training for {steps} steps")
run = idode.train(
    "digits",
    out=args.out / "run",
    data=data,
    steps=steps,
    settings=settings,
    resume=(args.out / "run").exists(),
    device="cpu",
    progress=not args.fast,
)
print(f"{run.path}: {run.config.train.steps} steps")

# %% How likely are the test images?
# The SDE's bound is cheap, so all of them get one; the ODE's value, which is closer to the truth
# once a model is trained well, solves a differential equation for each and is shown for some.

model = idode.load(run, device="cpu")
bound = model.sde_bound(data.test, draws=64)
print(f"SDE bound {bound.mean:.3f} ± {bound.standard_error:.3f} bits/dim, {len(data.test)} images")
some = data.test[: 2 if args.fast else 16]
solver = Adams(tolerance=1.0 if args.fast else 0.02)
result = model.bits_per_dim(some, idode.LikelihoodSettings(solver=solver))
print(f"ODE {result}, {len(some)} images, NFE {result.nfe:.0f}")

# %% The most and the least likely
# Fewer bits, more likely: the least likely are the ones to look at first in a data set.

order = bound.per_image.argsort()
for name, rows in (("most", order[:3]), ("least", order.flip(0)[:3])):
    listed = ", ".join(f"{int(i)} ({float(bound.per_image[i]):.2f})" for i in rows)
    print(f"{name} likely, by number (bits/dim): {listed}")
half = min(8, len(order) // 2)
ranked = torch.from_numpy(np.array(data.test))[torch.cat([order[:half], order[-half:]])]
(args.out / "ranked.png").write_bytes(png(grid(ranked, data.levels or 256, columns=half)))

# %% New images

drawn = model.sample(32, solver=DPM(steps=20))
(args.out / "samples.png").write_bytes(png(grid(drawn, data.levels or 256, columns=8)))
print(f"{args.out / 'ranked.png'} (most likely above, least likely below)")
print(args.out / "samples.png")
