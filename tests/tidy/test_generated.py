"""What is generated and committed equals what its source gives: nobody edits it by hand, nobody forgets to generate it."""

import importlib.util
from pathlib import Path

from anabranch_node.drivers import telemetry
from anabranch_node.web.request import METHODS, Kind
from tests.tidy import protocol_page
from tests.tidy.source_tree import ROOT


def test_peer_pb2_is_what_peer_proto_gives(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("generate_peer", ROOT / "proto" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.generate(tmp_path)
    for name in module.NAMES:
        committed = (ROOT / "proto" / "anabranch_proto" / name).read_bytes()
        assert committed == (tmp_path / name).read_bytes(), f"{name} is not what peer.proto gives; run `python proto/generate.py`"


def test_the_page_of_metrics_is_what_telemetry_gives() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == telemetry.reference(), "run `python -m anabranch_node.drivers.telemetry > docs/metrics.md`"


def test_the_tables_of_the_protocol_are_what_the_code_works_by() -> None:
    text = protocol_page.PAGE.read_text(encoding="utf-8")
    assert text == protocol_page.page(text), "run `python -m tests.tidy.protocol_page`"


def test_the_tables_of_the_protocol_leave_nothing_out() -> None:
    tables = protocol_page.tables()
    assert set(protocol_page.DOES) | {Kind.PREFLIGHT} == set(Kind)
    assert {place for place, methods in METHODS.items() if methods} == set(protocol_page.PATHS)
    for code in ("`bad_path`", "`outcome_unknown`", "`too_many_frames`", "`method_not_allowed`", "`bad_bucket`", "`headers_too_large`"):
        assert code in tables["errors"]
