"""Identities, the prepared form, verification, and the command line around them."""

import argparse
import dataclasses
import hashlib
import json

import numpy as np
import pytest

from idode.cli.data import add_arguments, run
from idode.data import (
    PUBLISHED,
    Identity,
    content_hash,
    fetch,
    load,
    mismatch_warning,
    same_data,
    verify,
)
from idode.errors import InputError

NEW = Identity("imagenet32", "new, 2017", 1281167, 50000, 256, (3, 32, 32), "aa" * 32)
OLD = Identity("imagenet32-old", "old, 2016", 1281149, 49999, 256, (3, 32, 32), "bb" * 32)


@pytest.fixture
def spec(tmp_path):
    images = np.random.default_rng(2).integers(0, 256, (40, 3, 4, 4), dtype=np.uint8)
    np.save(tmp_path / "a.npy", images)
    return f"npy:{tmp_path / 'a.npy'}"


def test_digits_are_what_they_always_were():
    dataset = load("digits")
    assert (dataset.levels, dataset.shape, dataset.dim) == (17, (1, 8, 8), 64)
    assert (len(dataset.train), len(dataset.test)) == (1500, 297)
    assert (dataset.train.dtype, dataset.train.min(), dataset.train.max()) == (np.uint8, 0, 16)
    assert dataset.identity.sha256.startswith("8f26b2bd9d13")


def test_the_hash_is_that_of_the_values_train_before_test():
    train, test = np.arange(6, dtype=np.uint16).reshape(3, 2), np.ones((1, 2), np.uint16)
    expected = hashlib.sha256(train.astype("<u2").tobytes() + test.astype("<u2").tobytes())
    assert content_hash(train, test) == expected.hexdigest()
    assert content_hash(train.astype(">u2"), np.asfortranarray(test)) == expected.hexdigest()
    assert content_hash(test, train) != expected.hexdigest()


def test_an_identity_survives_json_and_fits_one_line():
    assert Identity.from_json(json.loads(json.dumps(NEW.to_json()))) == NEW
    assert "\n" not in str(NEW)
    for part in ("imagenet32", "1281167", "50000", "3x32x32", "256 levels", "aaaaaaaaaaaa"):
        assert part in str(NEW)
    for broken in ({}, {"name": "x"}, {**NEW.to_json(), "more": 1}):
        with pytest.raises(InputError, match="not the identity"):
            Identity.from_json(broken)


def test_same_data_goes_by_values_and_not_by_name():
    assert same_data(NEW, dataclasses.replace(NEW, name="renamed", version="other"))
    for change in ({"sha256": "cc"}, {"levels": 128}, {"test_size": 1}, {"shape": (3072,)}):
        assert not same_data(NEW, dataclasses.replace(NEW, **change))


def test_the_two_imagenet32_get_their_own_warning():
    assert mismatch_warning(NEW, NEW) is None
    for pair in ((NEW, OLD), (OLD, NEW)):
        assert "49,999" in str(mismatch_warning(*pair))
        assert "must not be compared" in str(mismatch_warning(*pair))
    other = str(mismatch_warning(NEW, load("digits").identity))
    assert "digits" in other
    assert "49,999" not in other


def test_loading_twice_maps_the_same_prepared_files(spec, tmp_path):
    first, second = load(spec, tmp_path / "cache"), load(spec, tmp_path / "cache")
    assert first.identity == second.identity
    assert isinstance(second.train, np.memmap)
    assert not second.train.flags.writeable
    np.testing.assert_array_equal(first.train, second.train)
    (folder,) = (tmp_path / "cache" / "files").iterdir()
    assert {p.name for p in folder.iterdir()} == {"train.npy", "test.npy", "identity.json"}


def test_a_changed_file_or_option_is_prepared_anew(spec, tmp_path):
    before = load(spec, tmp_path / "cache").identity
    np.save(tmp_path / "a.npy", np.zeros((50, 3, 4, 4), np.uint8))
    after = load(spec, tmp_path / "cache").identity
    assert (before.train_size, after.train_size) == (36, 45)
    assert load(spec + "?test=0.5", tmp_path / "cache").identity.train_size == 25


def test_verify_finds_a_single_flipped_bit(spec, tmp_path):
    identity = load(spec, tmp_path / "cache").identity
    assert verify(spec, tmp_path / "cache") == identity
    (path,) = (tmp_path / "cache").rglob("test.npy")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged"):
        verify(spec, tmp_path / "cache")


@pytest.mark.parametrize("name", ["train.npy", "identity.json"])
@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", None])
def test_damaged_prepared_data_is_noticed_on_loading(name, damage, spec, tmp_path):
    load(spec, tmp_path / "cache")
    (path,) = (tmp_path / "cache").rglob(name)
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match="delete the folder"):
        load(spec, tmp_path / "cache")


@pytest.mark.parametrize("get", [load, fetch])
def test_official_files_in_the_place_of_prepared_ones_are_not_called_damaged(get, tmp_path):
    folder = tmp_path / "mnist"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte").write_bytes(b"the user's own")
    assert PUBLISHED["mnist"].state(tmp_path) == "fetch"
    with pytest.raises(InputError, match="set IDODE_DATA to another folder") as refused:
        get("mnist", tmp_path)
    assert "delete" not in str(refused.value)


def test_an_empty_folder_is_as_good_as_none(tmp_path):
    (tmp_path / "mnist").mkdir()
    with pytest.raises(InputError, match="run `idode data fetch mnist`"):
        load("mnist", tmp_path)


def test_other_data_under_a_published_name_is_refused_and_not_kept(tmp_path):
    source = tmp_path / "bin"
    source.mkdir()
    for name in ("data_batch_1.bin", "test_batch.bin"):
        (source / name).write_bytes(bytes(3073))
    with pytest.raises(InputError, match="this is not cifar10: it holds 1 train"):
        load(f"cifar10:{source}", tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


def test_a_folder_without_the_official_files_is_named_with_them(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    advice = f"check that {empty} holds its official files, data_batch_1 to data_batch_5 and test"
    with pytest.raises(InputError, match=f"^cifar10 holds no samples: {advice}"):
        load(f"cifar10:{empty}", tmp_path / "cache")
    (empty / "test_batch.bin").write_bytes(bytes(3073))
    with pytest.raises(InputError, match=f"both are needed: {advice}"):
        load(f"cifar10:{empty}", tmp_path / "cache")
    (empty / "test_batch.bin").unlink()
    for name, file in (("mnist", "t10k-images"), ("imagenet32-old", "valid_32x32.tar")):
        with pytest.raises(InputError, match=f"check that {empty} holds .*{file}"):
            load(f"{name}:{empty}", tmp_path / "cache")


def test_the_published_hash_is_checked_and_not_only_the_sizes(tmp_path):
    small = dataclasses.replace(PUBLISHED["cifar10"], train_size=1, test_size=1)
    for name in ("data_batch_1.bin", "test_batch.bin"):
        (tmp_path / name).write_bytes(bytes(3073))
    with pytest.raises(InputError, match="hash"):
        small.load(tmp_path, tmp_path / "cache")
    known = dataclasses.replace(small, sha256=hashlib.sha256(bytes(6144)).hexdigest())
    assert known.load(tmp_path, tmp_path / "cache").identity.name == "cifar10"


def test_a_cache_that_is_a_file_is_said(spec, tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(InputError, match="IDODE_DATA"):
        load(spec, tmp_path / "cache")


def command(*arguments):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args([str(a) for a in arguments]))


def test_the_commands_print_and_write_the_same_result(spec, tmp_path, capsys):
    root = ["--root", tmp_path / "cache", "--json", tmp_path / "out.json"]
    assert command("describe", spec, *root) == 0
    shown, written = capsys.readouterr().out, json.loads((tmp_path / "out.json").read_text())
    dataset = load(spec, tmp_path / "cache")
    assert str(dataset.identity) in shown
    np.testing.assert_allclose(written["train"]["mean"], dataset.train.mean((0, 2, 3)))
    np.testing.assert_allclose(written["test"]["std"], dataset.test.std((0, 2, 3)))
    with pytest.raises(InputError, match=r"out\.json exists"):
        command("verify", spec, *root)
    assert json.loads((tmp_path / "out.json").read_text()) == written
    assert command("verify", spec, *root, "--force") == 0
    assert json.loads((tmp_path / "out.json").read_text())["sha256"] == dataset.identity.sha256
    capsys.readouterr()
    assert command("verify", "digits", "--quiet") == 0
    assert command("fetch", "digits", "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_list_shows_what_is_ready_and_what_is_not(tmp_path, capsys):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "identity.json").touch()
    command("list", "--root", tmp_path)
    lines = {line.split()[0]: line.split()[1] for line in capsys.readouterr().out.splitlines()}
    assert (lines["digits"], lines["mnist"], lines["cifar10"]) == ("ready", "ready", "fetch")
    assert lines["imagenet32-old"] == "by"


def test_a_command_without_its_data_set_says_so():
    with pytest.raises(InputError, match="needs a data set"):
        command("verify")
