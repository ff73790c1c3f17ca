"""The two tables of the data room, and how little a new line in one of them takes."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import idode.data
from idode.data import FORMATS, PUBLISHED, load
from idode.data.format import FileFormat, split_rows
from idode.data.published import Published
from idode.errors import InputError
from idode.registry import Registry


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_reads_with_a_test_share_and_levels(name):
    files = FORMATS[name]
    assert issubclass(files, FileFormat)
    assert (files().test, files().levels) == (0.1, None)
    assert FORMATS.summaries[name]


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_set_goes_by_its_name(name):
    assert isinstance(PUBLISHED[name], Published)
    assert PUBLISHED[name].name == name
    assert PUBLISHED.summaries[name]


def test_names_are_public_and_loaded_late():
    for name in idode.data.__all__:
        assert getattr(idode.data, name) is not None
    assert set(idode.data.LAZY) | {"FORMATS", "PUBLISHED"} == set(idode.data.__all__)
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        _ = idode.data.laod


@dataclass(frozen=True)
class Text(FileFormat):
    """One vector a line, its values separated by blanks."""

    skip: int = 0

    def read(self, path):
        yield from split_rows(iter([np.loadtxt(path, skiprows=self.skip)]), self.test)


def test_a_new_format_is_a_class_and_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "idode.data.loading.FORMATS", Registry("file format", {"text": f"{__name__}:Text"})
    )
    (tmp_path / "a.txt").write_text("a title\n" + "1 2\n3 4\n" * 5)
    data = load(f"text:{tmp_path / 'a.txt'}?test=0.5&skip=1", tmp_path / "cache")
    assert (data.train.shape, data.test.shape, data.levels) == ((5, 2), (5, 2), None)
    with pytest.raises(
        InputError, match=r"called 'skp' \(did you mean skip\?\): choose one of test, levels, skip"
    ):
        load(f"text:{tmp_path / 'a.txt'}?skp=1", tmp_path / "cache")


def test_images_may_have_fewer_levels_than_their_files(tmp_path):
    from PIL import Image

    for i in range(4):
        Image.fromarray(np.full((2, 2), i, np.uint8)).save(tmp_path / f"{i}.png")
    assert load(f"folder:{tmp_path}?levels=4&test=0.5", tmp_path / ".cache").levels == 4
    with pytest.raises(InputError, match=r"0\.\.2 are allowed"):
        load(f"folder:{tmp_path}?levels=3&test=0.5", tmp_path / ".cache")


def test_the_python_on_the_page_of_data_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parent.parent / "docs" / "data.md").read_text("utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(examples) == 3
    for code in examples:
        exec(compile(code, "data.md", "exec", dont_inherit=True), {"__name__": "page"})
