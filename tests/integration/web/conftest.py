"""A real Chromium on the page, served by the fake API beside this file."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from loms.core.clock import SystemClock

HERE = Path(__file__).parent
WEB = HERE.parents[2] / "web"
PATIENCE_SECONDS = 30
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
)


def _beside(name: str) -> Any:
    """The module in this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fake_api = _beside("fake_api")


class Page:
    """The page in the browser: open it, wait for it, read it."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url
        self.expected_errors: tuple[str, ...] = ()
        """Parts of console messages that this test provokes."""

    def open(self, route: str = "#/", width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """A fresh load of ``route``; ``scheme`` is what the operating system prefers."""
        self.resize(width, height)
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        self.driver.get("about:blank")
        self.driver.get(self.url + route)
        self.until(lambda: self.all("main > *") and "loading…" not in self.text("main"))

    def resize(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until ``condition`` gives something true, and return it."""
        wait = WebDriverWait(self.driver, PATIENCE_SECONDS, poll_frequency=0.1)
        return wait.until(lambda _: condition())

    def all(self, css: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def one(self, css: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def text(self, css: str) -> str:
        """Text of the first match with plain spaces, "" where there is none; safe while the page redraws."""
        script = "return document.querySelector(arguments[0])?.innerText ?? ''"
        return str(self.driver.execute_script(script, css)).replace("\u00a0", " ")

    def script(self, code: str, *args: Any) -> Any:
        return self.driver.execute_script(code, *args)

    def hover(self, element: WebElement, x: int = 0, y: int = 0) -> None:
        """Move the mouse to an offset from the element's centre."""
        ActionChains(self.driver).move_to_element_with_offset(element, x, y).perform()

    @property
    def route(self) -> str:
        return str(self.script("return location.hash"))

    def errors(self) -> list[str]:
        """Console errors since the last call, without the expected ones."""
        driver: Any = self.driver  # get_log is not annotated
        entries = [e["message"] for e in driver.get_log("browser") if e["level"] == "SEVERE"]
        return [m for m in entries if not any(part in m for part in self.expected_errors)]


def chromium(profile: Path) -> webdriver.Chrome:
    """A headless browser in Berlin, with a profile of its own."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    berlin = {**os.environ, "TZ": "Europe/Berlin"}
    return webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver")), env=berlin))


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        pytest.skip("needs chromium and chromedriver (Debian: chromium, chromium-driver)")
    chrome = chromium(tmp_path_factory.mktemp("chromium"))
    yield chrome
    chrome.quit()


@pytest.fixture
def api() -> Any:
    return fake_api.FakeApi(SystemClock().now_ms, WEB)


@pytest.fixture
def page(driver: webdriver.Chrome, api: Any) -> Iterator[Page]:
    """The page over ``api``. Afterwards the browser's console must hold no unexpected error."""
    server = fake_api.FakeServer(api)
    page = Page(driver, server.url)
    page.errors()
    yield page
    errors = page.errors()
    driver.get("about:blank")
    server.close()
    assert errors == []


@pytest.fixture
def page_of(driver: webdriver.Chrome) -> Iterator[Callable[[str], Page]]:
    """The page of a server that is running already. Afterwards the console must hold no error."""
    pages: list[Page] = []

    def make(url: str) -> Page:
        driver.get_log("browser")
        pages.append(Page(driver, url + "/"))
        return pages[-1]

    yield make
    errors = [error for page in pages for error in page.errors()]
    driver.get("about:blank")
    assert errors == []
