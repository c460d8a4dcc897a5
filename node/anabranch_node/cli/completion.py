"""`completion`: prints what a shell needs to complete verbs and flags. Click makes the script; we only name the program."""

import click
from click.shell_completion import get_completion_class

from anabranch_node.cli.failure import Failed


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script for SHELL.

    \b
    Examples:
      eval "$(anabranch completion bash)"
      anabranch completion zsh > ~/.zfunc/_anabranch
      anabranch completion fish > ~/.config/fish/completions/anabranch.fish
    """
    found = get_completion_class(shell)
    if found is None:
        raise Failed(f"there is no completion for {shell}")
    click.echo(found(ctx.find_root().command, {}, "anabranch", "_ANABRANCH_COMPLETE").source())
