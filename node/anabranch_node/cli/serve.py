"""`serve` and `config-reference`: the flags are made from NodeConfig's fields, so a setting exists once. After us: main.py's serve(config)."""

from typing import Any

import click

from anabranch_node import config as settings
from anabranch_node.cli.failure import BadSettings

Command = click.Command


def _flags(command: Command) -> Command:
    for key, item in settings.FIELDS.items():
        text: str = item.metadata["help"]
        default = item.default
        if default and not isinstance(default, bool):
            assert isinstance(default, str | int), key
            text += f"  [default: {settings.shown_number(key, default) if isinstance(default, int) else default}]"
        kind = settings.TYPES[key]
        if kind is bool:
            option = click.Option([settings.flag_of(key), key], is_flag=True, flag_value=True, default=None, help=text)
        elif kind is int:
            option = click.Option([settings.flag_of(key), key], metavar="BYTES" if "bytes" in key else "N", help=text)
        elif kind is str:
            choices = item.metadata["choices"]
            option = click.Option([settings.flag_of(key), key], type=click.Choice(choices) if choices else None, help=text)
        else:
            option = click.Option([settings.flag_of(key), key], multiple=True, metavar="HOST:PORT", help=text)
        command.params.append(option)
    return command


@click.command()
@click.option(
    "--config", "config_file", envvar="ANABRANCH_CONFIG", type=click.Path(dir_okay=False), help="TOML file with settings [env: ANABRANCH_CONFIG]"
)
@click.option("--check", is_flag=True, help="only check the settings, start nothing")
@click.pass_context
def serve(ctx: click.Context, /, config_file: str | None, check: bool, **flags: Any) -> None:
    """Run one node until SIGTERM or Ctrl-C.

    Every flag is also a variable (--tick-ms: ANABRANCH_TICK_MS) and a key of the TOML file (tick_ms).
    Flags win over variables, variables over the file. A new node waits for `anabranch init`, or joins through --peers.

    \b
    Examples:
      anabranch serve --name a --data-dir ./a
      anabranch serve --config /etc/anabranch/node.toml
      anabranch serve --name b --data-dir ./b --peers 10.0.0.1:4439 --peer-listen 10.0.0.2:4439 --insecure
    """
    given = {key: value for key, value in flags.items() if value is not None and value != ()}
    try:
        config = settings.load(given, file=config_file)
    except settings.ConfigError as wrong:
        raise BadSettings("these settings do not fit:\n" + "\n".join(f"  {line}" for line in wrong.problems)) from None
    if check:
        click.echo("the settings are fine")
        return
    ctx.exit(ctx.obj(config))


_flags(serve)


@click.command("config-reference")
def config_reference() -> None:
    """Print docs/config.md: every setting with flag, variable, default and meaning."""
    click.echo(settings.reference(), nl=False)
