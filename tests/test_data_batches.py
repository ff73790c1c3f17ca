"""The order of the samples, the loader, and the augmentation."""

import itertools
import mmap
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from idode.data import Batches, Loader, augment
from idode.data.batches import for_device
from idode.data.mapped import blocks, release
from idode.errors import InputError

PLAIN = for_device("cpu")


def test_every_sample_comes_once_an_epoch_whatever_the_batch_size():
    for batch_size in (1, 7, 10, 23, 64):
        batches = Batches(seed=3, batch_size=batch_size, size=23)
        stream = torch.cat([batches.indices(step) for step in range(-(-46 // batch_size))])
        first, second = stream[:23], stream[23:46]
        assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(23))
        assert first.tolist() != second.tolist()


def test_a_batch_is_a_function_of_seed_and_step_alone():
    wanted = [Batches(0, 8, 50).indices(step) for step in range(40)]
    again = Batches(0, 8, 50)
    for step in (39, 3, 17, 0):  # in any order, as after a resume
        assert torch.equal(again.indices(step), wanted[step])
    assert not torch.equal(Batches(1, 8, 50).indices(0), wanted[0])


def test_neither_batches_nor_augmentation_touch_the_global_generator():
    before = torch.get_rng_state()
    Batches(0, 8, 50).indices(2)
    augment(torch.zeros(4, 1, 2, 2), torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_batch_size_changes_the_cut_and_not_the_order():
    small, large = Batches(5, 4, 30), Batches(5, 12, 30)
    joined = torch.cat([small.indices(step) for step in range(9)])
    assert torch.equal(joined, torch.cat([large.indices(step) for step in range(3)]))


def test_batches_of_nothing_are_refused():
    for bad in ((-1, 1, 1), (0, 0, 1), (0, 1, 0)):
        with pytest.raises(InputError, match="batch_size >= 1"):
            Batches(*bad)


@pytest.mark.parametrize(
    ("stored", "given"),
    [(np.uint8, torch.uint8), (np.uint16, torch.int32), (np.float32, torch.float32)],
)
def test_the_loader_gives_the_batches_from_its_start_on(stored, given, tmp_path):
    rows = np.arange(60, dtype=stored).reshape(20, 3)
    np.save(tmp_path / "a.npy", rows)
    batches = Batches(0, 6, 20)
    with Loader(
        np.load(tmp_path / "a.npy", mmap_mode="r"), batches.indices, 14, prepare=PLAIN
    ) as loader:
        for step, found in zip(range(14, 40), loader, strict=False):
            assert found.dtype == given
            np.testing.assert_array_equal(found.numpy(), rows[batches.indices(step).numpy()])


def test_the_loader_stops_its_thread_and_then_ends():
    before = set(threading.enumerate())
    loader = Loader(np.zeros((9, 2), np.uint8), Batches(0, 2, 9).indices, ahead=1, prepare=PLAIN)
    next(loader)
    loader.close()
    assert set(threading.enumerate()) <= before  # those of other tests may have ended meanwhile
    assert list(loader) == []


def test_an_error_in_the_thread_is_raised_where_the_batch_is_asked_for():
    def indices(step):
        if step == 2:
            raise RuntimeError("no third batch")
        return torch.tensor([step])

    loader = Loader(np.zeros((9, 2), np.uint8), indices, prepare=PLAIN)
    assert len(list(itertools.islice(loader, 2))) == 2
    with pytest.raises(RuntimeError, match="no third batch"):
        next(loader)


def test_releasing_pages_never_loses_values(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(4096.0))
    changed = np.load(tmp_path / "a.npy", mmap_mode="c")
    changed[:] = 7
    anonymous = np.frombuffer(mmap.mmap(-1, 4096), np.uint8)
    anonymous[:] = 7
    for array in (changed, changed[3:], anonymous):
        release(array)
        assert (array == 7).all()
    kept = np.load(tmp_path / "a.npy", mmap_mode="r")
    release(kept[5:])
    np.testing.assert_array_equal(kept, np.arange(4096.0))


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="resident pages are unknown")
def test_a_pass_over_a_map_leaves_little_of_it_resident(tmp_path):
    size = 100_000_000
    np.save(tmp_path / "a.npy", np.zeros(size, np.uint8))
    split = np.load(tmp_path / "a.npy", mmap_mode="r").reshape(-1, 1000)
    path = (tmp_path / "a.npy").resolve()

    def resident():
        text = Path("/proc/self/smaps").read_text()
        return int(text[text.index(str(path)) :].split("Rss:")[1].split()[0]) * 1024

    assert sum(int(block.sum()) for block in blocks(split)) == 0
    assert resident() < size / 10
    assert int(split.sum()) == 0  # the same pass without releasing
    assert resident() > size / 2


IMAGE = torch.arange(9, dtype=torch.uint8).reshape(1, 3, 3)


def symmetries():
    """The eight images, mirrored or not and turned 0..3 times, by an independent construction."""
    square = IMAGE[0].tolist()
    found = {}
    for mirrored in (False, True):
        turned = [row[::-1] for row in square] if mirrored else square
        for k in range(4):
            found[mirrored, k] = torch.tensor(turned).flatten().tolist()
            turned = [list(row) for row in zip(*turned, strict=True)][::-1]
    return found


def test_all_eight_symmetries_occur_with_their_probabilities():
    n = 24_000
    out, flag = augment(IMAGE.expand(n, 1, 3, 3), torch.Generator().manual_seed(0))
    rows = out.reshape(n, 9)
    total = 0
    for (mirrored, k), image in symmetries().items():
        same = (rows == torch.tensor(image, dtype=torch.uint8)).all(1)
        p = 1 / 4 if k == 0 else 1 / 12
        # five standard deviations of a binomial
        assert abs(same.sum().item() - n * p) < 5 * (n * p * (1 - p)) ** 0.5
        assert bool((flag[same] == float(mirrored or k > 0)).all())
        total += int(same.sum())
    assert total == n


def test_channels_are_turned_together_and_types_are_kept():
    pixels = torch.randn(64, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    pixels[:, 1:] = pixels[:, :1]
    out, flag = augment(pixels, torch.Generator().manual_seed(2))
    assert torch.equal(out[:, 0], out[:, 2])
    assert out.dtype == pixels.dtype
    assert torch.equal((out != pixels).flatten(1).any(1), flag.bool())
    again, _ = augment(pixels, torch.Generator().manual_seed(2))
    assert torch.equal(out, again)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 9)])
def test_images_that_cannot_be_turned_are_refused(shape):
    with pytest.raises(InputError, match="square"):
        augment(torch.zeros(shape), torch.Generator())


@pytest.mark.parametrize(("device", "pinned"), [("cpu", 0), ("cuda", 1), ("cuda:1", 1)])
def test_batches_for_a_gpu_come_in_page_locked_memory(device, pinned, monkeypatch):
    asked = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda batch: asked.append(1) or batch)
    for_device(device)(0, torch.zeros(2))
    assert bool(asked) == bool(pinned)


def test_a_process_turns_its_own_images_as_one_process_would():
    pixels = torch.arange(6 * 9).reshape(6, 1, 3, 3)
    whole, flags = augment(pixels, torch.Generator().manual_seed(4))
    part, flag = augment(pixels[2:4], torch.Generator().manual_seed(4), first=2, count=6)
    assert torch.equal(part, whole[2:4])
    assert torch.equal(flag, flags[2:4])
