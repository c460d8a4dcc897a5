"""The whole command as one click group. Before us: main.py, which brings `serve`. After us: one module per family, imported when its verb is used,
so that `anabranch append` in a shell loop does not pay for servers and tables it never shows."""

from collections.abc import Callable
from importlib import import_module

import click

from anabranch_node.config import NodeConfig

VERBS: dict[str, tuple[str, str]] = {
    "serve": ("serve", "serve"),
    "dev": ("dev", "dev"),
    "init": ("cluster", "init"),
    "status": ("cluster", "status"),
    "wait-ready": ("cluster", "wait_ready"),
    "append": ("append", "append"),
    "read": ("read", "read"),
    "tail": ("read", "tail"),
    "bucket": ("bucket", "bucket"),
    "bench": ("bench", "bench"),
    "config-reference": ("serve", "config_reference"),
    "completion": ("completion", "completion"),
}
"""Verb -> module and name in it, in the order of --help."""

Serve = Callable[[NodeConfig], int]


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, name = VERBS[cmd_name]
        command: click.Command = getattr(import_module(f"anabranch_node.cli.{module}"), name)
        return command


def application(serve: Serve) -> click.Group:
    """The command. `serve` runs a node until it is told to stop and returns the exit code."""

    @click.group(
        cls=_Verbs,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "obj": serve},
        epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 not ready or unavailable. From a checkout: python -m anabranch_node.main VERB",
    )
    @click.version_option(version=version(), prog_name="anabranch")
    def anabranch() -> None:
        """Durable streams over plain HTTP: run nodes, look at a cluster, append and read.

        \b
        A whole cluster on this machine:   anabranch dev
        Append a line to a stream:         echo hello | anabranch append demo --create
        Follow it live:                    anabranch tail demo --offset -1
        """

    return anabranch


def version() -> str:
    """Of the installed package; a checkout that was never installed says so."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("anabranch")
    except PackageNotFoundError:
        return "0.1.0.dev0+checkout"
