"""``idode completion``: a script that lets the shell complete commands, options and names.

Made from the parsers of the commands and printed as plain shell code, since asking Python at
every press of the key would take a second each. Names (presets, data sets, shipped models) are
those of the version that printed it.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from idode.cli.parsing import COMMANDS, parser_of

__all__ = ["SHELLS", "add_arguments", "run"]


@dataclass(frozen=True)
class Slot:
    """An option or a positional argument, and what may be written there."""

    names: tuple[str, ...]  # of an option; a positional argument has none
    help: str
    value: bool  # a word follows the option
    words: tuple[str, ...] = ()  # one that ends in a colon goes on with a path
    files: bool = False


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``idode completion``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "to load it, now and in every new shell:\n"
        "  bash  add to ~/.bashrc:  source <(idode completion bash)\n"
        "  zsh   add to ~/.zshrc:   source <(idode completion zsh)   (after compinit)\n"
        "  fish  idode completion fish > ~/.config/fish/completions/idode.fish"
    )
    parser.add_argument("shell", choices=tuple(SHELLS), metavar="shell", help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    """Carry out ``idode completion``; the exit code."""
    print(SHELLS[args.shell]({name: slots(name) for name in COMMANDS}), end="")
    return 0


def slots(command: str) -> list[Slot]:
    """What the parser of a command takes, in its order."""
    names = known_names()
    found = []
    for action in parser_of(command).actions:
        words = tuple(str(choice) for choice in action.choices or ())
        text = "" if action.help in (None, argparse.SUPPRESS) else str(action.help)
        found.append(
            Slot(
                names=tuple(action.option_strings),
                help=text.replace("%%", "%"),
                value=action.nargs != 0,
                words=words or names.get(action.dest, ()),
                files=action.type is Path or action.dest in ("run", "before"),
            )
        )
    return found


def known_names() -> dict[str, tuple[str, ...]]:
    """Words for arguments that take more than a list could hold, by the argument's name."""
    from idode.data.spec import KINDS, NEED_PATH
    from idode.runs.presets import PRESETS
    from idode.runs.run import SHIPPED, pretrained

    specs = tuple(f"{kind}:" if kind in NEED_PATH else kind for kind in KINDS)
    shipped = tuple(f"{SHIPPED}{name}" for name in pretrained())
    presets = tuple(PRESETS)
    return {"run": shipped, "before": shipped, "data": specs, "spec": specs, "preset": presets}


Table = dict[str, list[Slot]]

BASH = r"""# bash completion of idode; load it with: source <(idode completion bash)
_idode_value() {  # what may stand after option (or as argument number) $2 of command $1
    values="" files=""
    case "$1 $2" in
@CASES@
        *) return 1 ;;
    esac
}

_idode() {
    local line=${COMP_LINE:0:COMP_POINT} values="" files="" options="" place=0 skip="" i
    local -a given
    read -ra given <<< "$line"
    local count=${#given[@]} current=""
    if [[ $line != *[[:space:]] ]]; then
        current=${given[count-1]}
        given=("${given[@]:0:count-1}")
        count=$((count - 1))
    fi
    local command=${given[1]} previous=${given[count-1]}
    case "$command" in
@OPTIONS@
    esac
    if [[ $current == --*=* ]]; then
        previous=${current%%=*} current=${current#*=}
    fi
    if ((count == 1)); then
        values="@COMMANDS@"
    elif [[ $previous != -* ]] || ! _idode_value "$command" "$previous"; then
        for ((i = 2; i < count; i++)); do
            if [[ $skip ]]; then
                skip=""
            elif [[ ${given[i]} != -* ]]; then
                place=$((place + 1))
            elif _idode_value "$command" "${given[i]}"; then
                skip=yes
            fi
        done
        if [[ $current == -* ]] || ! _idode_value "$command" "$place"; then
            values=$options files=""
        fi
    fi
    COMPREPLY=($(compgen -W "$values" -- "$current"))
    local path=$current before=""
    if [[ $current == *:* && " $values " == *" ${current%%:*}: "* ]]; then
        before=${current%%:*}: path=${current#*:} files=yes
        COMPREPLY=()
    fi
    if [[ $files ]]; then
        compopt -o filenames 2> /dev/null
        while IFS= read -r i; do
            COMPREPLY+=("$before$i")
        done < <(compgen -f -- "$path")
    fi
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *: ]]; then
        compopt -o nospace 2> /dev/null
    fi
    if [[ $current == *:* && $COMP_WORDBREAKS == *:* ]]; then
        local cut=${current%"${current##*:}"}  # bash replaces only what follows the colon
        COMPREPLY=("${COMPREPLY[@]#"$cut"}")
    fi
}
complete -F _idode idode
"""

ZSH = r"""#compdef idode
# zsh completion of idode; load it with: source <(idode completion zsh)
_idode_words() {  # words, those that end in a colon going on with a path
    local -a whole=(${@:#*:}) open=(${(M)@:#*:})
    if (( ${open[(Ie)${PREFIX%%:*}:]} )); then
        compset -P '*:'
        _files
    else
        compadd -- $whole
        compadd -S '' -- $open
    fi
}

_idode_words_and_files() {
    _idode_words "$@"
    _files
}

_idode() {
    if (( CURRENT == 2 )); then
        local -a commands=(
@COMMANDS@
        )
        _describe command commands
        return
    fi
    shift words
    (( CURRENT-- ))
    case $words[1] in
@CASES@
    esac
}
compdef _idode idode
"""

FISH = r"""# fish completion of idode; write it to ~/.config/fish/completions/idode.fish
function __idode_in
    set -l given (commandline -opc)
    test (count $given) -gt 1; and test $given[2] = $argv[1]
end

function __idode_words_before
    count (commandline -opc)
end

complete -c idode -f
@LINES@
"""


def bash(table: Table) -> str:
    """For bash 3.2 and newer, with or without its bash-completion package."""
    cases, options = [], []
    for command, found in table.items():
        place = 0
        for slot in (s for s in found if s.value):
            keys = slot.names or (str(place),)
            place += not slot.names
            pattern = "|".join(f'"{command} {key}"' for key in keys)
            values = f'values="{" ".join(slot.words)}" files={"yes" if slot.files else ""}'
            cases.append(f"        {pattern}) {values} ;;")
        names = " ".join(name for slot in found for name in slot.names)
        options.append(f'        {command}) options="{names}" ;;')
    parts = {"CASES": "\n".join(cases), "OPTIONS": "\n".join(options), "COMMANDS": " ".join(table)}
    return _filled(BASH, parts)


def zsh(table: Table) -> str:
    """Specifications for zsh's own ``_arguments``, which also shows the help."""

    def action(slot: Slot) -> str:
        words = " ".join(word.replace(":", r"\:") for word in slot.words)
        if slot.words:
            return f"{{_idode_words{'_and_files' if slot.files else ''} {words}}}"
        return "_files" if slot.files else " "

    def specifications(slot: Slot) -> list[str]:
        text = re.sub(r"([\[\]:\\])", r"\\\1", slot.help)
        if not slot.names:
            return [f":{text or 'value'}:{action(slot)}"]
        after = f":value:{action(slot)}" if slot.value else ""
        return [f"{n}{'=' * n.startswith('--') * slot.value}[{text}]{after}" for n in slot.names]

    cases = []
    for command, found in table.items():
        lines = [shlex.quote(spec) for slot in found for spec in specifications(slot)]
        joined = " \\\n                ".join(lines)
        cases.append(f"        {command})\n            _arguments {joined}\n            ;;")
    commands = "\n".join(
        f"            {shlex.quote(name + ':' + COMMANDS[name][1])}" for name in table
    )
    return _filled(ZSH, {"COMMANDS": commands, "CASES": "\n".join(cases)})


def fish(table: Table) -> str:
    """One line an option; fish finds the rest."""
    start = "complete -c idode -n 'test (__idode_words_before) -eq 1'"
    lines = [f"{start} -a {name} -d {_fish(COMMANDS[name][1])}" for name in table]
    for command, found in table.items():
        place, positional = 0, sum(not slot.names for slot in found)
        for slot in found:
            condition, words = f"__idode_in {command}", f"-a {_fish(' '.join(slot.words))}"
            if slot.names:
                flags = [f"-l {n[2:]}" if n[:2] == "--" else f"-s {n[1:]}" for n in slot.names]
                flags += ["-r" if slot.files else "-x"] if slot.value else []
                flags += [words] if slot.words else []
            else:
                place += 1
                if positional > 1:
                    last = "-ge" if place == positional else "-eq"
                    condition += f"; and test (__idode_words_before) {last} {place + 1}"
                flags = [words] if slot.words else []
            flags += ["-F"] if slot.files else []
            if flags:
                told = f"-d {_fish(slot.help)}" if slot.names else ""
                lines.append(
                    f"complete -c idode -n {_fish(condition)} {' '.join(flags)} {told}".rstrip()
                )
    return _filled(FISH, {"LINES": "\n".join(lines)})


def _fish(text: str) -> str:
    """In fish's single quotes only the backslash and the quote itself are special."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _filled(template: str, parts: dict[str, str]) -> str:
    return re.sub("@([A-Z]+)@", lambda found: parts[found[1]], template)


SHELLS: dict[str, Callable[[Table], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
