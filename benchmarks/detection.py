"""Known against unknown images: AUROC of five scores, and whether p-values are what they say.

    python benchmarks/detection.py --out docs/results/detection.json

Scores of all images come from the same evaluations of the network. The detectors are those that
come with the models, calibrated on the first 4,000 (Fashion-MNIST) and 3,000 (CIFAR-10) test
images; known images here are later ones, from number 4,000 on. Baselines are fitted to the first
300. With --keep, statistics are kept in a folder, and a measurement that was stopped continues.
"""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter

import idode
from idode.data.loading import load
from idode.detection.calibrate import detector_of
from idode.detection.conformal import p_values
from idode.detection.detector import fit_normal
from idode.detection.separation import auroc, separation
from idode.detection.statistics import CLEAN_WORDS, Levels, measure, statistics_of
from idode.evaluation.coder_proxies import coder_size, missing_coders
from idode.runs.run import open_run

CALIBRATED = 4000  # first test images, which the shipped detectors know
MSMA_LEVELS = 10
METHODS = ("ours", "plain likelihood", "likelihood - coder", "MSMA", "typicality")


def each(images, change):
    """A change of every channel as a picture."""
    return np.stack(
        [np.stack([np.asarray(change(Image.fromarray(c))) for c in im]) for im in images]
    )


def blurred(images, radius=1.0):
    """A Gaussian blur."""
    return each(images, lambda p: p.filter(ImageFilter.GaussianBlur(radius)))


def jpeg(images, quality):
    """What JPEG leaves of them."""
    found = []
    for image in images:
        file = io.BytesIO()
        picture = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
        Image.fromarray(picture).save(file, "JPEG", quality=quality)
        back = np.asarray(Image.open(file))
        found.append(back[None] if back.ndim == 2 else back.transpose(2, 0, 1))
    return np.stack(found)


def noisy(images, spread=10, seed=1):
    """Normal noise, rounded."""
    noise = np.random.default_rng(seed).normal(0, spread, images.shape)
    return np.clip(np.round(images + noise), 0, 255).astype(np.uint8)


def in_colour(images):
    """Grey 28x28 images with a black border of two pixels, the same in all colours."""
    return np.repeat(np.pad(images, ((0, 0), (0, 0), (2, 2), (2, 2))), 3, axis=1)


def fashion_sets(known, args):
    """Images that are not Fashion-MNIST."""
    n = len(known)
    return {
        "MNIST": np.asarray(load(args.mnist).test[:n]),
        "flipped upside down": known[:, :, ::-1],
        "flipped left to right": known[..., ::-1],
        "negated": 255 - known,
        "blurred, radius 1": blurred(known),
        "noise of 10 levels": noisy(known),
        "shifted by 4 pixels": np.roll(known, 4, axis=3),
    }


def cifar_sets(known, args):
    """Images that are not CIFAR-10."""
    n, rng = len(known), np.random.default_rng(0)
    return {
        "MNIST in colour": in_colour(np.asarray(load(args.mnist).test[:n])),
        "Fashion-MNIST in colour": in_colour(np.asarray(load(args.fashion).test[:n])),
        "uniform noise": rng.integers(0, 256, known.shape).astype(np.uint8),
        "one colour": np.broadcast_to(rng.integers(0, 256, (n, 3, 1, 1)), known.shape).astype(
            np.uint8
        ),
        "noise of 10 levels": noisy(known),
        "blurred, radius 1": blurred(known),
        "JPEG, quality 50": jpeg(known, 50),
        "JPEG, quality 90": jpeg(known, 90),
        "negated": 255 - known,
        "flipped upside down": known[:, :, ::-1],
    }


class Scores:
    """All five scores of images, higher for the unusual.

    MSMA is the size of the predicted noise of clean images at ten levels; the detector has six of
    them, and four are computed for it.
    """

    def __init__(self, name, fitted, keep):
        run = open_run(name)
        self.model = run.model("cpu")
        self.detector = detector_of(run, self.model)
        low, high = self.model.gamma_min + 1, self.model.gamma_max - 1
        ten = np.linspace(low, high, MSMA_LEVELS)
        ours = self.detector.levels.clean
        others = [float(g) for g in ten if np.abs(np.subtract(ours, g)).min() > 1e-6]
        self.others, self.keep = Levels(tuple(others), ()), keep
        self.coder = "PNG" if "JPEG XL" in missing_coders(fitted) else "JPEG XL"
        found = self.statistics("fitted", fitted)
        self.msma = fit_normal(self._norms(found))
        self.typical = float(self.detector.bits(found["ours"]).mean())

    def statistics(self, label, images, baselines=True):
        """Statistics ``(N, F)`` of our detector, those only MSMA needs, and sizes of files."""
        words = "".join(c if c.isalnum() else "-" for c in label)
        file = None if self.keep is None else self.keep / f"{words}.npz"
        if file is not None and file.exists():
            return dict(np.load(file))
        images = np.ascontiguousarray(images)
        found = {"ours": measure(self.model, images, self.detector.levels)}
        if baselines:
            found["more"] = measure(self.model, images, self.others)
            found["size"] = coder_size(self.coder, images)
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            np.savez(file, **found)
        return found

    def _norms(self, found):
        """The ten sizes, ``(N, 10)``."""
        pairs = ((found["ours"], self.detector.levels), (found["more"], self.others))
        return np.concatenate(
            [
                v[:, [s.words == CLEAN_WORDS[0] for s in statistics_of(levels)]]
                for v, levels in pairs
            ],
            axis=1,
        )

    def __call__(self, label, images):
        """Scores ``(N,)`` by method."""
        found = self.statistics(label, images)
        bits = self.detector.bits(found["ours"])
        scores = (
            self.detector.normal.score(found["ours"]),
            bits,
            bits - found["size"],
            self.msma.score(self._norms(found)),
            np.abs(bits - self.typical),
        )
        return dict(zip(METHODS, scores, strict=True))


def table(name, scores, base, sets):
    """AUROC of every method on every set."""
    rows = {}
    for label, images in sets.items():
        found = scores(label, images)
        ours = separation(base["ours"], found["ours"])
        rows[label] = row = {m: auroc(base[m], found[m]) for m in METHODS}
        row["interval"] = [ours.auroc.low, ours.auroc.high]
        row["FPR at 95% TPR"] = ours.fpr_at_95_tpr.value
        row["best or within its error"] = max(row[m] for m in METHODS) <= ours.auroc.high
        others = [f"{row[m]:.3f}" for m in METHODS[1:]]
        print(f"{name} | {label} | {ours.auroc} | {' | '.join(others)}", flush=True)
    return rows


def held_out(name, scores, known):
    """Shares of p-values of known images up to some levels, and their binomial errors."""
    p = p_values(known, scores.detector.known)
    found = {}
    for level in (0.01, 0.05, 0.1):
        share = float((p <= level).mean())
        drawn = (level * (1 - level) / len(p)) ** 0.5
        calibrated = (level * (1 - level) / len(scores.detector.known)) ** 0.5
        both = float(np.hypot(drawn, calibrated))
        found[str(level)] = {"share": share, "binomial": drawn, "with calibration": both}
        print(f"{name} | p <= {level} | {share:.4f} ± {drawn:.4f} | {both:.4f}", flush=True)
    return {"images": len(p), "counted": len(scores.detector.known), "shares": found}


def measured(key, name, spec, sets, args):
    """Both tables of a model."""
    test = np.asarray(load(spec).test)
    keep = None if args.keep is None else args.keep / key
    scores = Scores(name, test[: args.fitted], keep)
    known = test[CALIBRATED : CALIBRATED + args.images]
    base = scores("known", known)
    rows = table(name, scores, base, sets(known, args))
    rest = test[CALIBRATED + args.images : CALIBRATED + args.held_out]
    more = scores.statistics("held out", rest, baselines=False)["ours"]
    together = np.concatenate([base["ours"], scores.detector.normal.score(more)])
    return {
        "sets": rows, "images": args.images, "fitted": args.fitted, "coder": scores.coder,
        "calibration": scores.detector.about, "nfe": scores.detector.levels.nfe,
        "p-values": held_out(name, scores, together),
    }  # fmt: skip


def main():
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cifar10", default="cifar10")
    parser.add_argument("--fashion", default="fashion-mnist")
    parser.add_argument("--mnist", default="mnist")
    parser.add_argument("--images", type=int, default=200, help="of every set")
    parser.add_argument("--fitted", type=int, default=300, help="for the baselines")
    parser.add_argument("--held-out", type=int, default=2000, help="known images for p-values")
    parser.add_argument("--only", choices=("fashion", "cifar10"))
    parser.add_argument(
        "--keep", type=Path, help="folder for statistics of these images and these models"
    )
    parser.add_argument("--out", type=Path, help="write all figures as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    jobs = {
        "fashion": ("pretrained:fashion-mnist-small", args.fashion, fashion_sets),
        "cifar10": ("pretrained:cifar10-small", args.cifar10, cifar_sets),
    }
    found = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    found["idode"] = idode.__version__
    for key, (name, spec, sets) in jobs.items():
        if args.only in (None, key):
            found[key] = measured(key, name, spec, sets, args)
            if args.out:
                args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
