"""The readers under the fuzzer, each with small valid files."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import shutil
import struct
import tarfile
import zipfile
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import tiny
from fuzz_derived import derived_readers
from fuzzing import Reader
from PIL import Image

from idode.data.arrays import Csv, Npy, Npz
from idode.data.cifar import read_cifar10
from idode.data.idx import read_idx
from idode.data.imagenet import read_imagenet32
from idode.data.images import Images, decode
from idode.data.loading import parse
from idode.data.prepared import open_prepared, prepare
from idode.data.unpickle import unpickle
from idode.evaluation.store import JsonlStore
from idode.nets.config import UNetConfig
from idode.nets.flax_format import decode as decode_flax
from idode.nets.flax_format import encode
from idode.nets.unet import UNet
from idode.nets.vdm_weights import (
    from_state_dict,
    infer_config,
    learned_gamma_range,
    to_state_dict,
)
from idode.runs.config import override
from idode.runs.dequantizer_file import load_dequantizer, save_dequantizer
from idode.runs.presets import PRESETS
from idode.runs.run import Run, open_run
from idode.studies.comparison.curves import learning_curve
from idode.studies.comparison.folder import stored_plan
from idode.studies.comparison.plan import Entry
from idode.studies.comparison.results import Result, read_result
from idode.studies.comparison.settings import MeasurementSettings
from idode.training import checkpoint
from idode.training.flow_fitting import untrained_dequantizer
from idode.training.metrics import read_metrics

PIXELS = np.arange(2 * 3072, dtype=np.uint32).astype(np.uint8).reshape(2, 3072)
ENTRY, MEASUREMENT = Entry("vdm", 0), MeasurementSettings()
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")


def written(write: Callable[[io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def picture(kind: str, mode: str = "RGB") -> bytes:
    pixels = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    return written(lambda f: Image.fromarray(pixels).convert(mode).save(f, kind))


def tar() -> bytes:
    def write(file: io.BytesIO) -> None:
        with tarfile.open(fileobj=file, mode="w") as archive:
            for i in range(4):
                data = picture("PNG")
                info = tarfile.TarInfo(f"{'a' * (120 if i else 1)}/{i}.png")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))

    return written(write)


def zipped() -> bytes:
    def write(file: io.BytesIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for i in range(4):
                archive.writestr(f"a/é{i}.png", picture("PNG"))

    return written(write)


def at(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Read the bytes as a file; a stream of rows is read to its end."""

    def reader(data: bytes) -> object:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        found = read(path)
        if isinstance(found, Iterable) and not isinstance(found, dict | list | str):
            deque(found, maxlen=0)
        return found

    return reader


def data_readers(root: Path) -> dict[str, Reader]:
    cifar = {"data": PIXELS, "labels": [1, 2], "mean": np.linspace(0, 1, 5)}
    pickles = [pickle.dumps(cifar, protocol) for protocol in range(6)]
    idx = struct.pack(">IIII", 0x803, 3, 4, 4) + bytes(48)
    rows = np.arange(60, dtype=np.uint8).reshape(15, 1, 2, 2)
    vectors = np.linspace(0, 1, 30).reshape(15, 2).astype(np.float32)
    npy = [written(lambda f, a=a: np.save(f, a)) for a in (rows, vectors, rows[:, 0])]
    npz = [
        written(lambda f: np.savez(f, train=rows, test=rows)),
        written(lambda f: np.savez_compressed(f, x=vectors)),
    ]
    table = "\n".join(["a,b", *(f"{x},{y}" for x, y in vectors.tolist())]).encode()
    images = [picture(kind, mode) for kind in FORMATS for mode in ("RGB", "L")]
    tars = [tar(), gzip.compress(tar()), bz2.compress(tar()), lzma.compress(tar())]
    (root / "idx").mkdir()
    return {
        "pickle": Reader(pickles, lambda data: unpickle(data, "batch")),
        "cifar": Reader([bytes(3073) * 2], at(root / "cifar/data_batch_1.bin", read_cifar10)),
        "cifar tar": Reader(
            [cifar_tar(pickles[2])], at(root / "cifar-10-python.tar.gz", read_cifar10)
        ),
        "imagenet npz": Reader(
            [written(lambda f: np.savez(f, data=PIXELS))],
            at(root / "imagenet/val_data.npz", read_imagenet32),
        ),
        "imagenet pickle": Reader(pickles, at(root / "imagenet2/val_data", read_imagenet32)),
        "idx": Reader([idx], at(root / "idx/train-images-idx3-ubyte", read_idx)),
        "idx gz": Reader(
            [gzip.compress(idx)], at(root / "idx2/train-images-idx3-ubyte.gz", read_idx)
        ),
        "image": Reader(images, lambda data: decode(data, "image")),
        "image scaled": Reader(images, lambda data: decode(data, "image", 4)),
        "tar": Reader(tars, at(root / "a.tar", Images().read)),
        "zip": Reader([zipped()], at(root / "a.zip", Images().read)),
        "npy": Reader(npy, at(root / "a.npy", Npy().read)),
        "npz": Reader(npz, at(root / "a.npz", Npz().read)),
        "csv": Reader([table], at(root / "a.csv", Csv().read)),
        "spec": Reader(
            [b"npy:a.npy?levels=16&test=0.5", b"folder:~/x?size=8&channels=3", b"cifar10:/a"],
            lambda data: parse(data.decode("utf-8", "surrogateescape")),
        ),
        "prepared": prepared(root),
    }


def cifar_tar(batch: bytes) -> bytes:
    def write(file: io.BytesIO) -> None:
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            info = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
            info.size = len(batch)
            archive.addfile(info, io.BytesIO(batch))

    return written(write)


def prepared(root: Path) -> Reader:
    folder = root / "prepared"
    rows = np.arange(16, dtype=np.uint8).reshape(4, 1, 2, 2)
    prepare(iter([("train", rows), ("test", rows)]), folder, "a", "b")
    names = ("identity.json", "train.npy")
    seeds = {name: (folder / name).read_bytes() for name in names}

    def read(data: bytes) -> object:
        name = names[1] if data[:1] == b"\x93" else names[0]
        for other in names:
            (folder / other).write_bytes(data if other == name else seeds[other])
        return open_prepared(folder)

    return Reader(list(seeds.values()), read)


def run_readers(root: Path) -> dict[str, Reader]:
    trained = tiny.train(root / "run", "train.steps=10").run
    model = trained.model()
    save_dequantizer(trained.path, untrained_dequantizer(model, (1, 4, 4), "tn"), 1)
    step = trained.checkpoints / "step-000000010"
    names = {
        "config.json": open_run,
        "model.safetensors": lambda path: open_run(path).net(),
        "metrics.jsonl": lambda path: (
            learning_curve(open_run(path)),
            read_metrics(path / "metrics.jsonl"),
        ),
        "dequantizer.safetensors": lambda path: load_dequantizer(open_run(path)),
    }
    slow = {"model.safetensors": 4, "dequantizer.safetensors": 8}
    found = {name: in_run(trained, name, read, slow.get(name, 1)) for name, read in names.items()}
    for name in ("manifest.json", "state.safetensors"):
        relative = (step / name).relative_to(trained.path).as_posix()
        found[name] = in_run(
            trained,
            relative,
            lambda path: checkpoint.load_latest(path / "checkpoints", lambda text: None),
        )
    with JsonlStore(root / "seed.jsonl", {"seed": 1}) as store:
        for i in range(3):
            store.append({"stage": "a", "batch": i, "values": [1.5, 2.5]})
    result = Result(ENTRY, MEASUREMENT).done("training", 1.0, {"tn": 1.0}, ("note",))
    plan = json.dumps({"preset": "digits", "finetune": None}).encode()
    return found | {
        "store": Reader([(root / "seed.jsonl").read_bytes()], at(root / "s.jsonl", opened_store)),
        "result.json": Reader(
            [json.dumps(result.to_json()).encode()],
            at(root / "result/result.json", lambda p: read_result(p.parent, ENTRY, MEASUREMENT)),
        ),
        "plan.json": Reader([plan], at(root / "plan/plan.json", lambda p: stored_plan(p.parent))),
        "flax": Reader([small_flax()], read_flax, slow=4),
        "setting": Reader(
            [b"train.lr=1e-3", b"net.width=64", b"train.betas=0.9,0.99", b"model.clock=-13,5"],
            lambda data: override(PRESETS["digits"], [data.decode("utf-8", "surrogateescape")]),
        ),
    }


def in_run(trained: Run, name: str, read: Callable[[Path], object], slow: int = 1) -> Reader:
    """A run with one file changed, in a copy of its own."""
    path = trained.path.with_name(f"run {Path(name).name}")
    shutil.copytree(trained.path, path)
    seed = (path / name).read_bytes()

    def reader(data: bytes) -> object:
        (path / name).write_bytes(data)
        return read(path)

    return Reader([seed], reader, slow)


def opened_store(path: Path) -> list[object]:
    with JsonlStore(path, {"seed": 1}) as store:
        return list(store.records())


def small_flax() -> bytes:
    """The smallest network that the format can hold."""
    config = UNetConfig(channels=1, width=32, depth=1, attention="none", fourier=False, flag=False)
    weights = from_state_dict(UNet(config).state_dict(), config)
    line = {"b": np.array([-13.0], np.float32), "w": np.array([18.0], np.float32)}
    return encode({"ema_params": {**weights, "gamma": line}, "step": 7})


def read_flax(data: bytes) -> object:
    tree = decode_flax(data)
    config = infer_config(tree)
    return to_state_dict(tree, config), learned_gamma_range(tree)


def readers(root: Path) -> dict[str, Reader]:
    """All of them; ``root`` is for their files."""
    return data_readers(root) | run_readers(root) | derived_readers(root)
