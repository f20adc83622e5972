"""`report --html`: one page, safe whatever records say, that works in a browser."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import fakes
import pytest

from mixerlab.sweeps.report import report as reports

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
EVIL = "<img src=x onerror=document.title='owned'>"


@pytest.fixture
def results(tmp_path):
    for mixer, top in (("attn", 0.8), ("gdn", 0.9), (EVIL, 0.7)):
        fakes.add_run(tmp_path, [0.3, top, 0.5, 0.3, top - 0.02, 0.5], mixer=mixer, seed=[0, 1])
        fakes.add_run(tmp_path, [0.3, top - 0.2, 0.5], mixer=mixer, setting="seq_len-256")
    fakes.add_run(tmp_path, [0.3, 0.4, 0.5], task="mem")
    return tmp_path


class Read(HTMLParser):
    """Tags with their attributes, and the text of each cell."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.cells = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_data(self, data):
        if self.cells:
            self.cells[-1] += data


def page_of(results, monkeypatch):
    def save(figure, stem, *_):
        stem.with_suffix(".png").write_bytes(b"picture")
        return [stem.with_suffix(".png")]

    monkeypatch.setattr(reports.canvas, "save", save)
    assert reports.main([str(results), "--html"]) == 0
    return (results / "report/report.html").read_text()


def test_the_page_holds_all_and_asks_for_nothing(results, monkeypatch):
    text = page_of(results, monkeypatch)
    read = Read(text)
    images = [attributes["src"] for tag, attributes in read.tags if tag == "img"]
    assert len(images) >= 5 and all(src.startswith("data:image/png;base64,") for src in images)
    assert not {"link", "iframe", "object"} & {tag for tag, _ in read.tags}
    assert not re.search(r"https?://", text)
    assert text.count("<script") == 1 and EVIL not in text and read.cells.count(EVIL) == 4
    assert [attributes for tag, attributes in read.tags if "onerror" in attributes] == []
    run = json.loads(next(results.glob("runs/*/record.json")).read_text())["run_id"]
    assert run in read.cells and "0.780" in read.cells  # the second seed of attn


def test_a_later_report_without_it_removes_it(results, monkeypatch):
    page_of(results, monkeypatch)
    assert reports.main([str(results)]) == 0
    assert not (results / "report/report.html").exists()


def in_browser(page, tmp_path, *options):
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
        "--disable-component-update", "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=5000", *options, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_in_a_browser_a_click_sorts_and_no_name_runs(results, monkeypatch, tmp_path):
    """A copy of the page clicks on the heading of `gdn` twice; its policy lets this one script run as well."""
    text = page_of(results, monkeypatch)
    clicks = """
    const table = document.querySelectorAll("table.sorts")[1];
    const column = [...table.tHead.rows[0].cells].findIndex(cell => cell.textContent === "gdn");
    const value = row => row.cells[1].textContent + row.cells[column].dataset.value;
    const seen = () => [...table.tBodies[0].rows].map(value);
    const orders = [seen()];
    for (let i = 0; i < 2; i++) { table.tHead.rows[0].cells[column].click(); orders.push(seen()); }
    document.querySelector("details").open = true;
    document.body.dataset.orders = JSON.stringify(orders);
    document.body.dataset.opened = document.querySelector("details table").offsetHeight > 0;
    """
    copy = results / "copy.html"
    policy = re.search(r"script-src 'sha256-[^']+'", text)[0]
    digest = base64.b64encode(hashlib.sha256(clicks.encode()).digest()).decode()
    with_clicks = text.replace(policy, f"{policy} 'sha256-{digest}'")
    copy.write_text(with_clicks.replace("</body>", f"<script>{clicks}</script></body>"))
    dom = in_browser(copy, tmp_path, "--dump-dom").stdout
    orders = json.loads(Read(dom).tags[[tag for tag, _ in Read(dom).tags].index("body")][1]["data-orders"])
    assert orders == [
        ["baseline0.89", "seq_len-2560.7", "baseline"],
        ["seq_len-2560.7", "baseline0.89", "baseline"],
        ["baseline0.89", "seq_len-2560.7", "baseline"],
    ]
    assert 'data-opened="true"' in dom and "<title>Accuracy of sequence mixers</title>" in dom
