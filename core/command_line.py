"""The command line: `python -m core.run CONFIG [key=value ...]`."""

from __future__ import annotations

import argparse
import errno
import logging
import os
import sys
import time
from contextlib import suppress
from typing import NoReturn

from core import __version__, plugins
from core.errors import EngineDead, RankDone, UserError
from core.parallel.switches import set_switches
from core.plugins.blame import account
from core.registry import registries
from core.told_once import first_to_tell, follows
from core.visible import visible

NOT_WRITABLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG}
"""What a full disk, or one that takes nothing, says."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}. Settings are written key=value, without dashes; see --help.")


def run(argv: list[str]) -> int:
    """Run what the command line asks for.

    -> exit status: the app's, 2 after a user's mistake, 1 after a fault. KeyboardInterrupt after
    Ctrl-C.
    """
    set_switches()  # torch is not imported yet; under torchrun this process is a rank
    try:
        status = _run(_parse(argv))
        sys.stdout.flush()
        return status
    except UserError as error:
        message = str(error)
        notes = [n for n in registries.notes if n.removeprefix("note: ") not in message]
        if first_to_tell(message):
            _complain(message, *notes)
        else:
            time.sleep(1.0)  # torchrun ends all ranks with the first, which may not have spoken yet
        return 2
    except EngineDead as error:  # it brings the account of the worker that broke
        _complain(str(error), *registries.notes)
        return 1
    except BrokenPipeError:  # the reader of our output left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            _complain(account(error), *registries.notes)
            return 1
        _complain(f"The output cannot be written: {error}. Choose another place.")
        with suppress(OSError, ValueError):  # what is still to be written would fail at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except RankDone:
        return 0
    except (Exception, SystemExit, GeneratorExit) as error:  # nobody else ends the process
        _complain(account(error), *registries.notes)
        return 1


def _complain(*texts: str) -> None:
    print(*map(visible, texts), sep="\n", file=sys.stderr, flush=True)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--help", "-h", nargs="?", const="", metavar="SECTION")
    parser.add_argument("--list-plugins", action="store_true")
    parser.add_argument("--print-config", action="store_true")
    parser.add_argument("-p", dest="plugins", action="append", default=[], metavar="NAME")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--version", action="store_true")
    return parser.parse_intermixed_args(argv)


def _run(asked: argparse.Namespace) -> int:
    # what the first of torchrun's ranks says is true of all
    usual, ours = (logging.ERROR,) * 2 if follows() else (logging.WARNING, logging.INFO)
    logging.basicConfig(format="%(levelname)s: %(message)s", level=usual)
    logging.getLogger("plait").setLevel(ours)
    words = list(asked.words)
    first_is_file = bool(words) and ("=" not in words[0] or os.path.isfile(words[0]))
    config_file = words.pop(0) if first_is_file else None
    if asked.version:
        print(f"plait {__version__}")
    elif asked.help is not None:
        from core import explain

        if asked.help:
            plugins.load(asked.plugins, strict=asked.strict, warn=False)
        text = explain.section(asked.help) if asked.help else explain.general()
        print(visible(text), end="")
    elif asked.list_plugins:
        from core.plugins.listing import show

        named = []
        if config_file or words:
            from core.settings import plugin_words

            named = plugin_words(config_file, words)
        every = [*named, *asked.plugins]
        show(plugins.load(every, strict=asked.strict, warn=False), registries)
    elif config_file is None and not words:
        raise UserError(
            "name a configuration: python -m core.run CONFIG [key=value ...]; see --help."
        )
    else:
        from core import settings

        config = settings.load(config_file, words, plugins=asked.plugins, strict=asked.strict)
        if asked.print_config:
            from core.settings.yaml_text import dump

            print(visible(dump(config)), end="")
            return 0
        return registries.apps.get(config.run.use)(config.run.options).run(config)
    return 0
