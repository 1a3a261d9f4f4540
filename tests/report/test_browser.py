"""What the page's own script does, in a real browser, where there is one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from bench.report.document import Document, grid_of
from bench.report.html import html_of

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
ROWS = [
    ("ddp", "9.5 ± 0.1"),
    ("single", "10.2 ± 0.1"),
    ("fsdp", "–"),
    ("dp", "1,100 ± 3"),
    ("ddp(static_graph=true)", "9.7 ± 0.1"),
]
PROBE = """<script>
const table = document.querySelector("table"), seen = {};
const names = () => [...table.tBodies[0].rows].filter((row) => !row.hidden)
  .map((row) => row.cells[0].textContent);
const [strategy, rate] = [...table.tHead.rows[0].cells].map((head) => head.querySelector("button"));
const field = document.querySelector(".filter input"), count = document.querySelector("output");
const type = (words) => { field.value = words; field.dispatchEvent(new Event("input")); };
for (const name of ["ascending", "descending", "again"]) { rate.click(); seen[name] = names(); }
strategy.click(); seen.text = names();
type("DDP 9."); seen.filtered = names(); seen.count = count.textContent;
type("nowhere"); seen.none = names();
type(""); seen.all = names().length;
const found = document.createElement("pre");
found.id = "seen"; found.textContent = JSON.stringify(seen); document.body.append(found);
</script></body>"""


def test_tables_are_sorted_and_filtered(tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"needs a browser: one of {', '.join(BROWSERS)}")
    grid = grid_of("rates", ["strategy", "samples/s"], ROWS, words=1)
    page = html_of(Document(title="t", parts=[grid]))
    path = tmp_path / "page.html"
    path.write_text(page.replace("</body>", PROBE), encoding="utf-8")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr
    seen = json.loads(unescape(found[1]))
    as_it_was = [strategy for strategy, _ in ROWS]
    assert seen == {
        "ascending": ["ddp", "ddp(static_graph=true)", "single", "dp", "fsdp"],
        "descending": ["dp", "single", "ddp(static_graph=true)", "ddp", "fsdp"],
        "again": as_it_was,
        "text": ["ddp", "ddp(static_graph=true)", "dp", "fsdp", "single"],
        "filtered": ["ddp", "ddp(static_graph=true)"],
        "count": "2 of 5 rows",
        "none": [],
        "all": len(ROWS),
    }
