"""`superopt completion`: what makes a shell complete commands, options and the names of workloads."""

import argparse
import functools
import shlex
from collections.abc import Mapping
from typing import Any

from superopt.cli.parser import subcommands

__all__ = ["add_command"]

_EPILOG = """\
examples:
  source <(superopt completion bash)    for this session; ~/.bashrc keeps it
  source <(superopt completion zsh)
  superopt completion fish > ~/.config/fish/completions/superopt.fish
"""
_BASH = """\
_superopt() {
    local word=${COMP_WORDS[COMP_CWORD]} path= words= at
    for ((at = 1; at < COMP_CWORD && at < 3; at++)); do
        case "$path ${COMP_WORDS[at]}" in
@known@) path="$path ${COMP_WORDS[at]}" ;;
        *) break ;;
        esac
    done
    case "$path" in
@cases@
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _superopt superopt
"""
_ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i -D; }
autoload -Uz bashcompinit && bashcompinit
"""


def add_command(commands: Any) -> None:
    """Add `superopt completion`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "completion",
        help="print what makes a shell complete commands and options",
        description="Prints a script that makes a shell complete commands, options and named workloads.",
        epilog=_EPILOG,
    )
    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")
    parser.set_defaults(run=functools.partial(_run, commands.choices))


Words = dict[tuple[str, ...], list[str]]
"""What may follow the words of a command."""


def _run(commands: Mapping[str, argparse.ArgumentParser], arguments: argparse.Namespace) -> int:
    words: Words = {(): [*commands, "--help", "--version"]}
    for name, command in commands.items():
        words |= _words(command, (name,))
    if arguments.shell == "fish":
        print(_fish(words), end="")
    else:
        print((_ZSH if arguments.shell == "zsh" else "") + _bash(words), end="")
    return 0


def _words(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Words:
    """Return what may follow each command, by the words that lead to it."""
    from superopt.workloads import WORKLOADS

    inner = subcommands(parser)
    options = [
        option
        for action in parser._actions
        if action.help != argparse.SUPPRESS
        for option in action.option_strings
        if option.startswith("--")
    ]
    metavars = {action.metavar for action in parser._actions if not action.option_strings}
    shells = [action.choices or () for action in parser._actions if action.metavar == "SHELL"]
    named = list(WORKLOADS) if metavars & {"TARGET", "FIRST", "SECOND", "NAME"} else []
    found = {path: [*inner, *named, *(shells[0] if shells else ()), *options]}
    for name, one in inner.items():
        found |= _words(one, (*path, name))
    return found


def _bash(words: Words) -> str:
    paths = {"".join(f" {name}" for name in path): found for path, found in words.items()}
    known = " | ".join(f'"{path}"' for path in paths if path)
    cases = [f'    "{path}") words={shlex.quote(" ".join(found))} ;;' for path, found in paths.items()]
    return _BASH.replace("@known@", f"        {known}").replace("@cases@", "\n".join(cases))


def _fish(words: Words) -> str:
    lines = []
    for path, found in words.items():
        inner = " ".join(longer[-1] for longer in words if longer[:-1] == path and longer != path)
        seen = [f"__fish_seen_subcommand_from {name}" for name in path]
        if inner:  # a command is still to be given, and no file
            seen.append(f"not __fish_seen_subcommand_from {inner}")
        when = f"complete -c superopt -n '{'; and '.join(seen)}'"
        lines += [f"{when} -f"] if inner else []
        plain = " ".join(word for word in found if not word.startswith("--"))
        lines += [f"{when} -a '{plain}'"] if plain else []
        lines += [f"{when} -l {word[2:]}" for word in found if word.startswith("--")]
    return "\n".join([*lines, ""])
