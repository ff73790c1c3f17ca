"""The commands of ``idode``, one module each.

A command's module has ``add_arguments(parser)`` and ``run(args) -> int``, the exit code. It reads
arguments, calls the Python API and prints; ``add_arguments`` must not import torch, so that help
and shell completion are quick. ``SHARED = True`` says that the processes of ``torchrun`` share its
work; other commands refuse to run in several.
"""

from __future__ import annotations

from types import ModuleType

from idode.registry import Registry

__all__ = ["COMMANDS", "INTERRUPTED"]

INTERRUPTED = 130  # the exit code after Ctrl-C, as of a shell

COMMANDS: Registry[ModuleType] = Registry(
    "command",
    {
        "data": ("idode.cli.data", "list, fetch, verify and describe data sets"),
        "train": ("idode.cli.train", "train a model from a preset"),
        "finetune": ("idode.cli.finetune", "fine-tune a run with the second-order objective"),
        "average": ("idode.cli.average", "the weights of a run, averaged with another width"),
        "dequantize": ("idode.cli.dequantize", "train a learned dequantization for evaluate"),
        "evaluate": ("idode.cli.evaluate", "bits per dimension of a data set, with error bars"),
        "sample": ("idode.cli.sample", "draw samples from a model, as pictures or arrays"),
        "fid": ("idode.cli.fid", "Fréchet distance of samples on disk to a data set"),
        "report": ("idode.cli.report", "one page with every figure of the paper for a run"),
        "compare": ("idode.cli.compare", "train and evaluate several systems on equal terms"),
        "demo": ("idode.cli.demo", "train, evaluate, sample and report on the 8x8 digits"),
        "compress": ("idode.cli.compress", "compress images without loss with a model"),
        "decompress": ("idode.cli.decompress", "restore the files of a compressed archive"),
        "calibrate": ("idode.cli.calibrate", "learn what known images look like, for score"),
        "score": ("idode.cli.score", "how unusual images are, with p-values and reasons"),
        "doctor": ("idode.cli.doctor", "versions, devices and the speed of this machine"),
        "export": ("idode.cli.export", "a run in the format of another library"),
        "import": ("idode.cli.import_checkpoint", "convert a published checkpoint to a run"),
        "completion": ("idode.cli.completion", "print a shell completion script"),
    },
)
