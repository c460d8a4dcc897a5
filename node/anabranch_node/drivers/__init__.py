"""The world: the only home of files, threads, sockets and clocks. Nothing pure imports this."""
