"""How a verb ends badly: a message on stderr and an exit code that scripts can rely on. 0 ok, 1 failed, 2 usage, 3 not ready or unavailable."""

import click


class Failed(click.ClickException):
    """It was tried and the answer is no."""

    exit_code = 1


class BadSettings(click.ClickException):
    """As if the command line were wrong, which it or a file or variable is."""

    exit_code = 2


class Unavailable(click.ClickException):
    """Nobody answered, or not yet: the same command may succeed later."""

    exit_code = 3
