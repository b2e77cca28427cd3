"""The query view."""

from __future__ import annotations

from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

pytestmark = [pytest.mark.integration, pytest.mark.browser]

GOOD = "sum by (instance) (rate(llm_engine_tokens_output_total[1m]))"


def test_chart_and_table(page: Any, api: Any) -> None:
    page.open("#/query")
    field = page.one("#expr")
    field.send_keys(GOOD, Keys.ENTER)
    page.until(lambda: len(page.all(".values tbody tr")) == 5)
    assert page.text(".chart h3").startswith("5 series, step 15 s")
    assert '{instance="127.0.0.1:9101"}' in page.text(".values")
    assert "expr=sum+by" in page.route
    assert api.queries[-1]["query"] == GOOD
    page.driver.refresh()
    page.until(lambda: page.all(".values tbody tr"))
    assert page.one("#expr").get_attribute("value") == GOOD


def test_errors_are_the_apis_own_words(page: Any) -> None:
    page.expected_errors = ("400",)
    page.open("#/query")
    page.one("#expr").send_keys("sum(rate(", Keys.ENTER)
    page.until(lambda: page.text(".problem") == "bad_data: 1:9: parse error: unclosed left parenthesis")
    assert not page.all(".values")
    page.one("#expr").clear()
    page.one("#expr").send_keys(GOOD, Keys.ENTER)
    page.until(lambda: page.all(".values tbody tr"))
    assert not page.all(".problem")


def test_no_series_is_said(page: Any) -> None:
    page.open("#/query?expr=nothing_of_this_name")
    page.until(lambda: page.text(".over-plot") == "no samples in this range")
    assert page.text(".chart h3").startswith("0 series")


def test_examples_run(page: Any) -> None:
    page.open("#/query")
    page.all(".examples a")[0].click()
    page.until(lambda: len(page.all(".values tbody tr")) == 5)
