"""Options that several verbs share, so that they are spelt and explained once."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from anabranch_node.cli.http import ADMIN_URL, CLIENT_URL

F = TypeVar("F", bound=Callable[..., Any])


def url_option(command: F) -> F:
    return click.option(
        "--url", "url", envvar="ANABRANCH_URL", default=CLIENT_URL, show_default=True, help="client URLs, comma-separated [env: ANABRANCH_URL]"
    )(command)


def admin_option(command: F) -> F:
    return click.option(
        "--admin", "admin", envvar="ANABRANCH_ADMIN", default=ADMIN_URL, show_default=True, help="admin URLs, comma-separated [env: ANABRANCH_ADMIN]"
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="JSON on stdout, for scripts")(command)
