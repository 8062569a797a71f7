"""What each way of handing out GPUs looks like on the map."""

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.api import bodies
from tests.api.bodies import pod
from tests.api.processes import Server, demo
from tests.changes import PAGE
from tests.page.conftest import Opener
from tests.page.test_page import colours, post, theme

pytestmark = pytest.mark.nightly(of=PAGE)


def test_slices_shares_mig_and_reservations(open_page: Opener, tmp_path: Path) -> None:
    with demo(tmp_path / "log", module="tests.page.mixed") as process:
        server = Server(process, tmp_path / "log")
        server.wait_for(lambda: server.get("/readyz").status == 200)
        page = open_page(at=server)
        expect(page.locator("#map h3")).to_have_text(
            [
                "a100-sxm4-40gb 40 GiB, 3 nodes, 2.3 of 12 GPUs booked",
                "t4 15 GiB, 1 node, 0.8 of 4 GPUs booked",
                "MIG devices 1 node, 3 of 6 MIG devices booked",
            ]
        )
        legend = page.get_by_role("list", name="Legend")
        expect(legend).to_contain_text("time slices")
        expect(legend).to_contain_text("MIG device")
        expect(legend).not_to_contain_text("reserved")
        assert not colours(page) & theme(page, "error")

        post(server, "filter", bodies.args(pod("train", 2), ["whole"]))  # decided, not bound
        expect(legend).to_contain_text("reserved")
        page.get_by_role("tab", name="Table").click()
        table = page.get_by_role("table", name="Nodes, with")
        expect(table.get_by_role("row", name="whole")).to_contain_text("2 GPUs reserved")
        expect(table.get_by_role("row", name="slices")).to_contain_text("4 time slices per GPU")
        expect(table.get_by_role("row", name="mig")).to_contain_text("1 of 4 MIG 1g.5gb free, 2 of 2 MIG 3g.20gb free")
