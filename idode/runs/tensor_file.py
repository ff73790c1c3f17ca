"""Tensors written as safetensors, in one atomic step and without a second copy in memory.

``safetensors.torch.save_file`` writes under a name of its own, which a kill leaves behind; the
bytes here are the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from idode.errors import InputError
from idode.storage import replacing

__all__ = ["save_tensors", "write_tensors"]

# In the order in which the format stores them: large items first, so that all are aligned.
DTYPES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
ORDER = {dtype: i for i, dtype in enumerate(DTYPES)}


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], described: Mapping[str, str] | None = None
) -> None:
    """Write a file of tensors, with what it says of itself."""
    try:
        with replacing(path) as file:
            write_tensors(file, tensors, described)
    except OSError as error:
        raise InputError(
            f"cannot write {path} ({error.strerror}): make room and give the command again"
        ) from None


def write_tensors(
    file: IO[bytes], tensors: Mapping[str, Tensor], described: Mapping[str, str] | None = None
) -> None:
    """Write tensors to an open file; tied weights are written twice."""
    for name, x in tensors.items():
        if x.dtype not in DTYPES:
            raise InputError(f"{name} is of {x.dtype}, which cannot be stored: convert it")
    names = sorted(tensors, key=lambda name: (ORDER[tensors[name].dtype], name))
    header: dict[str, object] = {} if described is None else {"__metadata__": dict(described)}
    end = 0
    for name in names:
        x = tensors[name]
        start, end = end, end + x.numel() * x.element_size()
        header[name] = {
            "dtype": DTYPES[x.dtype],
            "shape": list(x.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in names:
        flat = tensors[name].detach().cpu().contiguous().flatten()
        if flat.numel():
            file.write(flat.view(torch.uint8).numpy().data)
