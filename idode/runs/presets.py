"""Ready configurations: those of the paper with exactly its settings, and small ones.

A preset is a difference from another one. The paper's have no learning-rate decay, no clipping
and the same settings for both schedules; the small ones are for a laptop's two cores.
"""

from __future__ import annotations

import math
from dataclasses import replace

from idode.nets.config import MLPConfig, UNetConfig
from idode.runs.config import Config, FinetuneConfig, ModelConfig, ObjectiveConfig, TrainConfig

__all__ = ["PRESETS", "SUMMARIES"]


# The authors' 1e-8 is for a loss in bits/dim of 3x32x32 images; gradients here are in nats.
ADAM_EPS = 1e-8 * 3 * 32 * 32 * math.log(2)


def straight(base: Config, name: str, uniform_start: float) -> Config:
    """The same system on the straight path, where uniform noise starts elsewhere."""
    model = replace(base.model, schedule="sp", uniform_start=uniform_start)
    return replace(base, name=name, model=model)


CIFAR10 = Config(
    name="cifar10-vp",
    data="cifar10",
    model=ModelConfig(gamma_min=-13.3, gamma_max=5.0, uniform_start=-12.0),
    train=TrainConfig(sample_every=50_000, eps=ADAM_EPS),
    finetune=FinetuneConfig(steps=200_000, continues=True),
)
AUGMENTED = replace(
    CIFAR10,
    name="cifar10-aug",
    net=replace(UNetConfig(), width=256, attention="everywhere", dropout=0.05),
    objective=ObjectiveConfig(augment=True),
    train=replace(CIFAR10.train, steps=2_000_000, batch_size=1024),
)
IMAGENET32 = replace(
    CIFAR10,
    name="imagenet32-vp",
    data="imagenet32",
    model=replace(CIFAR10.model, uniform_start=-11.7),
    net=replace(UNetConfig(), width=256),
    train=replace(CIFAR10.train, steps=2_000_000),
    finetune=FinetuneConfig(steps=250_000, continues=True),
)
IMAGENET32_OLD = replace(
    IMAGENET32,
    name="imagenet32-old-vp",
    data="imagenet32-old",
    train=replace(IMAGENET32.train, batch_size=512, accumulate=2),  # 64 exceed an A100 of 40 GB
    # The authors count micro-batches: their 500,000 are 125,000 updates of 4 pieces each.
    finetune=FinetuneConfig(steps=125_000, accumulate=4, continues=True),
)
# Without fading, a short training leaves a field that no solver resolves in sensible time.
DIGITS_NET = UNetConfig(
    channels=1, levels=17, width=32, depth=2, attention="none", groups=8, dropout=0.2, fade=0.15
)
# At equal compute, more steps counted for more than larger batches (docs/results/networks.md).
FASHION_NET = replace(DIGITS_NET, levels=256, depth=3, halvings=1, dropout=0.0)
DIGITS = Config(
    name="digits",
    data="digits",
    net=DIGITS_NET,
    model=ModelConfig(levels=17, shape=(1, 8, 8)),
    train=TrainConfig(
        steps=5000,
        batch_size=64,
        lr=4e-3,
        decay="cosine",
        ema=0.999,
        ema_warmup=True,
        log_every=50,
        evaluate_every=200,
        evaluate_count=297,
        checkpoint_every=400,
        keep=2,
        sample_every=400,
        optimizer="muon",  # docs/results/training.md
    ),
    finetune=FinetuneConfig(steps=400, lr=5e-4),
)
FASHION = replace(
    DIGITS,
    name="fashion-mnist-small",
    data="fashion-mnist",
    net=FASHION_NET,
    model=ModelConfig(shape=(1, 28, 28), quantization="closed-form"),
    train=replace(
        DIGITS.train,
        steps=18_000,
        batch_size=16,
        lr=1e-2,
        momentum=0.9,
        log_every=100,
        evaluate_every=2000,
        evaluate_count=512,
        checkpoint_every=2000,
        sample_every=4000,
    ),
    finetune=FinetuneConfig(steps=2000, lr=2e-4),
)
# Quantization in closed form with a higher rate gains 0.16 bits/dim here in 150 seconds and
# loses 0.02 in an hour (docs/results/training.md).
CIFAR10_SMALL = replace(
    FASHION,
    name="cifar10-small",
    data="cifar10",
    net=replace(FASHION_NET, channels=3),
    model=ModelConfig(shape=(3, 32, 32)),
    train=replace(FASHION.train, steps=15_000, lr=4e-3, momentum=0.95),
)
# The start of trainings by minutes, most of them shorter than an hour: docs/results/networks.md
IMAGES = replace(FASHION, name="images", data=None, net=replace(FASHION_NET, groups=4, fade=0.08))
VECTORS = Config(
    name="vectors",
    data=None,
    net=MLPConfig(features=1),
    model=ModelConfig(gamma_min=-8.0, levels=None, shape=(1,)),
    train=replace(
        DIGITS.train,
        steps=2400,
        batch_size=256,
        lr=1e-3,
        evaluate_count=1024,
        sample_every=0,
        optimizer="adamw",
    ),
    finetune=FinetuneConfig(steps=400, lr=2e-4),
)

SUMMARIES: dict[str, str] = {
    "digits": "8x8 digits, minutes on two cores",
    "fashion-mnist-small": "Fashion-MNIST, an hour on one core",
    "cifar10-small": "CIFAR-10, an hour on one core",
    "images": "images of your own: give them with --data folder:PATH",
    "vectors": "a table of numbers: give it with --data csv:PATH or npy:PATH",
    "cifar10-vp": "the paper: CIFAR-10, variance preserving",
    "cifar10-sp": "the paper: CIFAR-10, straight path",
    "cifar10-aug": "the paper: CIFAR-10 with augmentation, variance preserving",
    "imagenet32-vp": "the paper: ImageNet-32 (new), variance preserving",
    "imagenet32-sp": "the paper: ImageNet-32 (new), straight path",
    "imagenet32-old-vp": "the paper: ImageNet-32 (old), variance preserving",
    "imagenet32-old-sp": "the paper: ImageNet-32 (old), straight path",
}
PRESETS: dict[str, Config] = {
    config.name: config
    for config in (
        DIGITS,
        FASHION,
        CIFAR10_SMALL,
        IMAGES,
        VECTORS,
        CIFAR10,
        straight(CIFAR10, "cifar10-sp", -11.9),
        AUGMENTED,
        IMAGENET32,
        straight(IMAGENET32, "imagenet32-sp", -11.6),
        IMAGENET32_OLD,
        straight(IMAGENET32_OLD, "imagenet32-old-sp", -11.6),
    )
}
