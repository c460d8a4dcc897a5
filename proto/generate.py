"""Writes anabranch_proto/peer_pb2.py and its types again from peer.proto. Run it after every change there: `python proto/generate.py`.

tests/tidy/test_generated.py calls generate() into an empty folder and compares. Not generated: gRPC stubs, since the driver passes bytes through."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = ("peer_pb2.py", "peer_pb2.pyi")


def generate(target: Path) -> None:
    from grpc_tools import protoc  # type: ignore[import-untyped]  # a tool of developers: a node runs without it

    code = protoc.main(["protoc", f"-I{HERE}", f"--python_out={target}", f"--pyi_out={target}", str(HERE / "peer.proto")])
    if code != 0:
        raise RuntimeError(f"protoc ended with {code}")


if __name__ == "__main__":
    generate(HERE / "anabranch_proto")
    sys.stdout.write(f"wrote {', '.join(NAMES)} into {HERE / 'anabranch_proto'}\n")
