"""``idode completion``: a script that lets the shell complete commands, options and names.

``shtab`` makes it from the parsers of all commands. The names it offers (presets, data sets,
models of the package) are those of the version that printed it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from idode.cli.parsing import Parser, parser_of

__all__ = ["SHELLS", "add_arguments", "run"]

SHELLS = ("bash", "zsh", "fish", "tcsh")

# bash ends words at ":" and "=", which ours contain: pretrained:NAME, folder:PATH, --split=test.
BASH = r"""
_idode() {
    local line=${COMP_LINE:0:COMP_POINT} word
    local -a COMP_WORDS=() given
    read -ra given <<< "$line"
    [[ $line == *[[:space:]] ]] && given+=("")
    for word in "${given[@]}"; do
        [[ $word == --*=* ]] && COMP_WORDS+=("${word%%=*}")
        [[ $word == --*=* ]] && word=${word#*=}
        COMP_WORDS+=("$word")
    done
    local COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _shtab_idode
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *: ]] && compopt -o nospace 2> /dev/null
    if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*:}"}"}")
    fi
}
complete -F _idode idode
"""
BASH_WORDS = r"""
@NAME@() {
    local kind=${1%%:*}: word
    if [[ $1 == *:* && " @WORDS@ " == *" $kind "* ]]; then
        while IFS= read -r word; do echo "$kind$word"; done < <(compgen -f -- "${1#*:}")
    else
        compgen -W "@WORDS@" -- "$1"
        @FILES@
    fi
}
"""
ZSH_WORDS = r"""
@NAME@() {
    local -a words=(@WORDS@)
    if (( ${words[(Ie)${PREFIX%%:*}:]} )); then
        compset -P '*:'
        _files
    else
        compadd -- ${words:#*:}
        compadd -S '' -- ${(M)words:#*:}
        @FILES@
    fi
}
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode completion``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "to load it in every new shell:\n"
        '  bash  add to ~/.bashrc:  eval "$(idode completion bash)"\n'
        '  zsh   add to ~/.zshrc:   eval "$(idode completion zsh)"   (after compinit)\n'
        "  fish  idode completion fish > ~/.config/fish/completions/idode.fish\n"
        "  tcsh  add to ~/.tcshrc:  idode completion tcsh > ~/.idode.tcsh; source ~/.idode.tcsh"
    )
    parser.add_argument("shell", choices=SHELLS, metavar="shell", help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    """Print the script; the exit code."""
    import shtab

    script: str = shtab.complete(whole_parser(), args.shell)
    print(script + (BASH if args.shell == "bash" else ""))
    return 0


def whole_parser() -> Parser:
    """All commands as subparsers, each argument with what may be written there."""
    import shtab

    from idode.cli import COMMANDS

    names = {dest: words(dest, *found) for dest, found in known_words().items()}
    whole = Parser(prog="idode")
    subparsers = whole.add_subparsers()
    for name, text in COMMANDS.summaries.items():
        # Without `parents` the arguments would have to be added twice, with it -h would be.
        parser = parser_of(name)
        subparsers.add_parser(name, help=text, parents=[parser], add_help=False)
        for action in parser.actions:
            if action.choices is None and action.dest in names:
                action.complete = names[action.dest]  # type: ignore[attr-defined]
            elif action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return whole


def known_words() -> dict[str, tuple[list[str], bool]]:
    """Names for arguments that are no closed list, and whether a file may stand there too."""
    from idode.data import FORMATS, PUBLISHED
    from idode.runs import SHIPPED, pretrained
    from idode.runs.presets import PRESETS

    runs = [f"{SHIPPED}{name}" for name in pretrained()], True
    specs = [*PUBLISHED, *(f"{name}:" for name in FORMATS)], False
    return {
        "run": runs,
        "before": runs,
        "data": specs,
        "spec": specs,
        "preset": ([*PRESETS], False),
    }


def words(what: str, known: list[str], files: bool) -> dict[str, Any]:
    """Words in the language of each shell; after one that ends in a colon comes a path."""
    name = f"_idode_file_or_{what}"  # shtab looks for _file in it

    def filled(template: str, more: str) -> str:
        parts = {"@NAME@": name, "@WORDS@": " ".join(known), "@FILES@": more if files else ":"}
        for mark, text in parts.items():
            template = template.replace(mark, text)
        return template

    fish = " ".join(known)
    return {
        "bash": name,
        "zsh": name,
        "fish": f"{fish} (__fish_complete_path (commandline -ct))" if files else fish,
        "tcsh": f"({' '.join(known)})",
        "preamble": {
            "bash": filled(BASH_WORDS, 'compgen -f -- "$1"'),
            "zsh": filled(ZSH_WORDS, "_files"),
        },
    }
