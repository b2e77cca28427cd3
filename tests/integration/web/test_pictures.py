"""Pictures of the page, as the documentation has them.

``LOMS_PICTURES=docs/images python -m pytest tests/integration/web/test_pictures.py`` renews those of the documentation;
with ``LOMS_PICTURES_OF=http://127.0.0.1:8090/`` they show a running LOMS instead of made-up data.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.browser]

PICTURES = (
    ("overview-light", "#/", 1280, "light"),
    ("overview-dark", "#/", 1280, "dark"),
    ("overview-phone", "#/", 390, "light"),
    ("engine-light", "#/engine/{engine}?range=15m", 1280, "light"),
    ("incident-dark", "#/incident/{incident}", 1280, "dark"),
)
COMPLETE = """
const text = document.querySelector('main').innerText;
return !/…|loading/.test(text) && document.querySelectorAll('.sparkline, canvas').length > 3;
"""


@pytest.mark.parametrize(("name", "route", "width", "scheme"), PICTURES)
def test_picture(page: Any, tmp_path: Path, name: str, route: str, width: int, scheme: str) -> None:
    page.url = os.environ.get("LOMS_PICTURES_OF", page.url)
    page.open()
    engine = page.text("tr.state-stalled .engine-name") or page.text(".engine-name")
    incident = page.script("return document.querySelector('[data-id]').dataset.id")
    page.open(route.format(engine=engine, incident=incident), width, 800, scheme)
    page.until(lambda: page.script(COMPLETE))
    height = min(page.script("return document.documentElement.scrollHeight"), 1700)
    page.resize(width, height)
    page.until(lambda: page.script("return innerHeight") == height and page.script(COMPLETE))
    picture = Path(os.environ.get("LOMS_PICTURES", tmp_path)) / f"{name}.png"
    assert page.driver.save_screenshot(str(picture))
    assert picture.stat().st_size > 50_000, "not an empty page"
