"""`waltz completion bash|zsh|fish`: what a shell needs to complete commands and options, made from their parsers.

The script is complete in itself: completing a word starts no Python. Where a value is due, or no option is begun, the
shell offers the names of files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from waltz_core.base.record import record
from waltz_trio.cli import main as waltz
from waltz_trio.cli.help import Parser
from waltz_trio.cli.options import Arguments, Command, parser_of


@record
class Flag:
    """One option, under all its names."""

    names: tuple[str, ...]
    meaning: str
    takes_value: bool
    choices: tuple[str, ...]


@record
class Branch:
    """One command; `path` is how it is called behind `waltz`, empty for `waltz` itself."""

    path: tuple[str, ...]
    below: tuple[tuple[str, str], ...]  # next words and their meanings
    flags: tuple[Flag, ...]


def branches() -> Iterator[Branch]:
    """Every command of `waltz`, from the top down; those that lack a library end with their name."""
    yield _branch((), waltz.make_parser())
    for noun in waltz.NOUNS:
        try:
            parser = waltz.parser_of_noun(noun)
        except ImportError:
            continue
        yield from _branches((noun,), parser)


def _branches(path: tuple[str, ...], parser: Parser) -> Iterator[Branch]:
    yield _branch(path, parser)
    for name, (below, _) in parser.below().items():
        yield from _branches((*path, name), below)


def _branch(path: tuple[str, ...], parser: Parser) -> Branch:
    flags = []
    for action in parser.options():
        meaning = (action.help or "") % {"default": action.default, "prog": parser.prog}
        choices = tuple(map(str, action.choices or ()))
        flags.append(Flag(tuple(action.option_strings), meaning, action.nargs != 0, choices))
    return Branch(path, tuple((name, meaning) for name, (_, meaning) in parser.below().items()), tuple(flags))


def _short(text: str) -> str:
    """The beginning of a meaning, as one word in single quotes."""
    text = re.split(r"[.;:(]", " ".join(text.split()), maxsplit=1)[0].strip()
    return _quoted(text)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "").replace("'", "") + "'"


def _key(path: Sequence[str]) -> str:
    return _quoted(" ".join(path))


def _names(flags: Sequence[Flag]) -> list[str]:
    return [name for flag in flags for name in flag.names]


def _with_values(flags: Sequence[Flag]) -> list[str]:
    return _names([flag for flag in flags if flag.takes_value])


# ---- bash ------------------------------------------------------------------------------------

_BASH = """\
# bash completion of waltz: . <(waltz completion bash), or put this into
# ~/.local/share/bash-completion/completions/waltz
_waltz() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
    local key= word below flags values
    COMPREPLY=()
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "${{key:+$key }}$word" in
        {paths}) key="${{key:+$key }}$word" ;;
        *) break ;;
        esac
    done
    case "$key" in
{cases}
    esac
    case " $values " in
    *" $previous "*)
        case "$key $previous" in
{choices}
        esac
        return ;;
    esac
    if [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$flags" -- "$current"))
    elif (( COMP_CWORD == 1 )) || [[ -n $key && $previous == "${{key##* }}" ]]; then
        COMPREPLY=($(compgen -W "$below" -- "$current"))
    fi
}}
complete -o default -F _waltz waltz
"""


def bash() -> str:
    """The script for bash."""
    every = list(branches())
    nouns = [(noun,) for noun in waltz.NOUNS]
    paths = dict.fromkeys([*nouns, *(branch.path for branch in every if branch.path)])
    cases, choices = [], []
    for branch in every:
        below = " ".join(word for word, _ in branch.below)
        flags, values = " ".join(_names(branch.flags)), " ".join(_with_values(branch.flags))
        cases.append(f"    {_key(branch.path)}) below='{below}' flags='{flags}' values='{values}' ;;")
        for flag in branch.flags:
            if flag.choices:
                keys = " | ".join(_key((*branch.path, name)) for name in flag.names)
                words = " ".join(flag.choices)
                choices.append(f"        {keys}) COMPREPLY=($(compgen -W '{words}' -- \"$current\")) ;;")
    return _BASH.format(paths=" | ".join(map(_key, paths)), cases="\n".join(cases), choices="\n".join(choices))


# ---- zsh -------------------------------------------------------------------------------------

_ZSH = """\
#compdef waltz
# zsh completion of waltz: source <(waltz completion zsh), or put this as _waltz into a directory of $fpath
_waltz() {{
    local key= word
    local -a below flags values
    for word in ${{words[2,CURRENT-1]}}; do
        case "${{key:+$key }}$word" in
        ({paths}) key="${{key:+$key }}$word" ;;
        (*) break ;;
        esac
    done
    case "$key" in
{cases}
    esac
    if (( ${{values[(Ie)${{words[CURRENT-1]}}]}} )); then
        _files
    elif [[ ${{words[CURRENT]}} == -* ]]; then
        _describe option flags
    elif (( ${{#below}} )) && {{ (( CURRENT == 2 )) || [[ -n $key && ${{words[CURRENT-1]}} == ${{key##* }} ]]; }}; then
        _describe command below
    else
        _files
    fi
}}
if [[ ${{funcstack[1]}} == _waltz ]]; then _waltz "$@"; else compdef _waltz waltz; fi
"""


def zsh() -> str:
    """The script for zsh."""
    every = list(branches())
    nouns = [(noun,) for noun in waltz.NOUNS]
    paths = dict.fromkeys([*nouns, *(branch.path for branch in every if branch.path)])
    cases = []
    for branch in every:
        below = " ".join(f"{word}:{_short(meaning)}" for word, meaning in branch.below)
        flags = " ".join(f"{name}:{_short(flag.meaning)}" for flag in branch.flags for name in flag.names)
        values = " ".join(_with_values(branch.flags))
        cases.append(f"    ({_key(branch.path)}) below=({below}) flags=({flags}) values=({values}) ;;")
    return _ZSH.format(paths="|".join(map(_key, paths)), cases="\n".join(cases))


# ---- fish ------------------------------------------------------------------------------------

_FISH = """\
# fish completion of waltz: waltz completion fish > ~/.config/fish/completions/waltz.fish
function __waltz_under
    set -l words (commandline -opc)
    for at in (seq (count $argv))
        test "$words[$(math $at + 1)]" = "$argv[$at]"; or return 1
    end
end
function __waltz_at
    test (count (commandline -opc)) -eq (math (count $argv) + 1); and __waltz_under $argv
end
"""


def fish() -> str:
    """The script for fish."""
    lines = []
    for branch in branches():
        words = " ".join(branch.path)
        for word, meaning in branch.below:
            lines.append(f"complete -c waltz -f -n '__waltz_at {words}' -a {word} -d {_short(meaning)}")
        where = f"__waltz_under {words}" if words else "__waltz_at"
        for flag in branch.flags:
            names = " ".join(_fish_name(name) for name in flag.names)
            value = f" -x -a '{' '.join(flag.choices)}'" if flag.choices else " -r" if flag.takes_value else ""
            lines.append(f"complete -c waltz -n '{where}' {names}{value} -d {_short(flag.meaning)}")
    return _FISH + "\n".join(lines) + "\n"


def _fish_name(name: str) -> str:
    if name.startswith("--"):
        return f"-l {name[2:]}"
    return f"-s {name[1:]}" if len(name) == 2 else f"-o {name[1:]}"


# ---- the table -------------------------------------------------------------------------------


def _print(script: Callable[[], str], arguments: Arguments) -> int:
    print(script(), end="")
    return 0


COMMANDS = tuple(
    Command(
        script.__name__,
        f"Print the completion for {script.__name__}; its first lines say where it goes",
        (),
        partial(_print, script),
        answers=False,
    )
    for script in (bash, zsh, fish)
)


def make_parser() -> Parser:
    """A command for each shell."""
    return parser_of("waltz completion", COMMANDS, __doc__)
