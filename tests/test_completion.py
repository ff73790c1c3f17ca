"""``idode completion`` in real shells, where they are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from idode.cli import COMMANDS
from idode.cli.completion import SHELLS
from idode.cli.main import main
from idode.cli.parsing import parser_of
from idode.data import FORMATS, PUBLISHED
from idode.runs.presets import PRESETS
from idode.runs.run import pretrained

ASK = r"""
COMP_LINE=$1 COMP_POINT=${#1} COMP_WORDS=() COMP_CWORD=0
[[ $(complete -p idode) == "complete -F _idode idode" ]] || exit 1
compopt() { :; }  # works only while the shell completes
_idode
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("completion")
    capture = pytest.MonkeyPatch()
    for shell in SHELLS:
        said: list[str] = []
        capture.setattr("builtins.print", lambda text, said=said: said.append(text))
        assert main(["completion", shell]) == 0
        capture.undo()
        (folder / f"idode.{shell}").write_text("".join(said))
    (folder / "place").mkdir()
    (folder / "place" / "a file.npy").write_text("")
    (folder / "place" / "runs").mkdir()
    return folder


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} is not installed")


def replies(scripts: Path, *command: str) -> set[str]:
    # A shell warns of a locale that is not installed, and reads a file of the user's.
    env = {name: value for name, value in os.environ.items() if name != "BASH_ENV"}
    done = subprocess.run(
        command,
        cwd=scripts / "place",
        env=env | {"LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return set(filter(None, done.stdout.splitlines()))


@pytest.mark.parametrize("shell", [pytest.param(s, marks=needs(s)) for s in SHELLS])
def test_a_script_is_good_grammar(shell: str, scripts: Path) -> None:
    replies(scripts, shell, "-n", str(scripts / f"idode.{shell}"))


@needs("bash")
class TestBash:
    def ask(self, scripts: Path, line: str) -> set[str]:
        code = f"source {scripts / 'idode.bash'}\n{ASK}"
        return replies(scripts, "bash", "--norc", "-c", code, "bash", line)

    def test_commands(self, scripts: Path) -> None:
        assert self.ask(scripts, "idode ") == set(COMMANDS)
        assert self.ask(scripts, "idode sa") == {"sample"}

    def test_every_option_of_a_command(self, scripts: Path) -> None:
        known = {o for a in parser_of("sample").actions for o in a.option_strings}
        assert self.ask(scripts, "idode sample pretrained:digits -") == known
        assert self.ask(scripts, "idode sample r --so") == {"--solver"}

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("idode train ", set(PRESETS)),
            ("idode train --steps 3 cifar10-s", {"cifar10-sp", "cifar10-small"}),
            ("idode train digits --data f", {"fashion-mnist", "folder:"}),
            ("idode data fetch ci", {"cifar10"}),
            ("idode data fe", {"fetch"}),
            ("idode evaluate r --split ", {"test", "train"}),
            ("idode evaluate r --split=te", {"test"}),
            ("idode sample r --solver d", {"dopri5", "dpm"}),
            ("idode sample r --count ", set()),
            ("idode sample pre", {f"pretrained:{name}" for name in pretrained()}),
            ("idode sample pretrained:d", {"digits"}),  # bash takes the colon for a word's end
            ("idode sample --quiet ru", {"runs"}),
            ("idode sample r --out a", {"a file.npy"}),
            ("idode train digits --data npy:", {"a file.npy", "runs"}),
            ("idode completion ", set(SHELLS)),
        ],
    )
    def test_values(self, line: str, expected: set[str], scripts: Path) -> None:
        assert self.ask(scripts, line) == expected

    def test_data_sets_are_those_that_can_be_named(self, scripts: Path) -> None:
        found = self.ask(scripts, "idode data describe ")
        assert {word.removesuffix(":") for word in found} == {*PUBLISHED, *FORMATS}


@needs("fish")
def test_fish_knows_commands_options_and_values(scripts: Path) -> None:
    def ask(line: str) -> set[str]:
        code = f"source {scripts / 'idode.fish'}; complete -C '{line}'"
        return {reply.split("\t")[0] for reply in replies(scripts, "fish", "-N", "-c", code)}

    assert ask("idode ") == set(COMMANDS)
    assert ask("idode sample r --so") == {"--solver"}
    assert ask("idode sample pre") == {f"pretrained:{name}" for name in pretrained()}
    assert ask("idode train digits --data f") == {"fashion-mnist", "folder:"}
    assert ask("idode data fe") == {"fetch"}
