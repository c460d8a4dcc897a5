"""The program: builds everything once. `python -m anabranch_node.main VERB` is the `anabranch` command; `serve` runs a node (drivers/node.py)."""

import asyncio
import signal
import sys

from anabranch_node.cli.app import application
from anabranch_node.config import NodeConfig


def serve(config: NodeConfig) -> int:
    """Run one node until a signal. Imports are here, so that the other verbs start fast."""
    if sys.flags.optimize:
        raise SystemExit("Anabranch keeps its assertions in production: run it without -O")
    import uvloop

    from anabranch_node.drivers.data_dir import DataDirInUse
    from anabranch_node.drivers.node import Node
    from anabranch_node.drivers.telemetry import configure_logging
    from anabranch_proto.formats import FormatError

    configure_logging(config.log_level, config.log_format)

    async def run() -> int:
        node = Node(config)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, node.stop)
        return await node.run()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run())
    except (DataDirInUse, FormatError, OSError) as error:
        sys.stderr.write(f"anabranch: {error}\n")
        return 1


def main() -> None:
    application(serve).main(prog_name="anabranch")


if __name__ == "__main__":
    main()
