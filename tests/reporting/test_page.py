"""The HTML page: whole, safe, and alive in a real browser."""

import html
import json
import re
import shutil

import pytest

from flcore.reporting import read_results
from flcore.reporting.page import page, write
from support.results import make_run, make_seeds

BROWSER = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")


@pytest.fixture
def results(tmp_path):
    paths = make_seeds(tmp_path, "FedAvg", (0.4, 0.5)) + make_seeds(tmp_path, "FedCPD", (0.6, 0.8))
    paths += make_seeds(tmp_path, "Local", (0.05,))
    return read_results(paths)[0]


def test_the_page_asks_for_nothing_from_elsewhere(results):
    text = page(results)
    assert not re.search(r"""(?:src|href|action)\s*=|url\(|@import|\bfetch\(|XMLHttp|import\(""", text)
    assert "default-src 'none'" in text
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) == {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_every_run_stands_there_with_its_command(results):
    commands = re.findall(r"<code>(.*?)</code>", page(results))
    assert len(commands) == 5
    data = html.escape(str(results.files[0].path.parent))
    assert f"python main.py --algorithm FedAvg --dataset Digits --data_dir {data} --goal s0 --seed 0" == html.unescape(
        commands[0]
    )


def test_names_cannot_become_markup(tmp_path):
    evil = "</script><img src=x onerror=alert(1)>"
    path = make_run(tmp_path, goal="a", note=evil)
    results = read_results([path])[0]
    results.runs["label"] = results.runs["dataset"] = evil
    text = page(results)
    assert "<img" not in text and text.count("</script>") == 2


def test_long_curves_are_thinned_and_keep_both_ends(tmp_path):
    long = {"rs_test_acc": [number / 5000 for number in range(5000)], "rs_round": list(range(5000))}
    text = page(read_results([make_run(tmp_path, arrays=long)])[0])
    [line] = json.loads(re.search(r'id="data">(.*?)</script>', text)[1])[0]["lines"]
    curve = line["curves"]["test_acc"]
    assert len(curve["round"]) == len(curve["mean"]) == 500
    assert (curve["round"][0], curve["round"][-1], curve["mean"][-1]) == (0, 4999, 99.98)


@pytest.fixture(scope="module")
def browser():
    selenium = pytest.importorskip("selenium", reason="selenium is not installed: bash scripts/setup.sh dev")
    if not BROWSER or not DRIVER:
        pytest.skip("no Chromium with its driver here: on Debian, apt-get install chromium chromium-driver")
    from selenium.webdriver.chrome.service import Service

    options = selenium.webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1400,2000",
    ):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = selenium.webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser, results, tmp_path):
    write(results, tmp_path / "report.html")
    browser.get((tmp_path / "report.html").as_uri())
    yield browser
    assert browser.get_log("browser") == []  # no error, no request refused


def rows(browser, table="methods"):
    """The texts of a table's rows that can be seen."""
    found = browser.find_elements("css selector", f"#{table} tbody tr")
    return [[cell.text for cell in row.find_elements("css selector", "td")] for row in found if row.is_displayed()]


def head(browser, name, table="methods"):
    heads = browser.find_elements("css selector", f"#{table} th button")
    return next(each for each in heads if " ".join(each.text.split()).startswith(name))


def legend(browser):
    """The values beside the methods' names."""
    buttons = browser.find_elements("css selector", ".legend button")
    return {
        spans[1].text: out.text
        for spans, out in ((_spans(b), b.find_element("css selector", "output")) for b in buttons)
    }


def _spans(button):
    return button.find_elements("css selector", "span")


def test_a_click_on_a_columns_head_sorts_by_its_numbers(opened):
    assert [row[0] for row in rows(opened)] == ["FedAvg", "FedCPD", "Local"]
    head(opened, "last A").click()
    assert [(row[0], row[4]) for row in rows(opened)] == [
        ("FedCPD", "70.00 ± 14.14"),
        ("FedAvg", "45.00 ± 7.07"),
        ("Local", "5.00"),
    ]
    assert opened.find_element("css selector", "th[aria-sort]").get_attribute("aria-sort") == "descending"
    head(opened, "last A").click()
    assert [row[0] for row in rows(opened)] == ["Local", "FedAvg", "FedCPD"]
    head(opened, "algorithm").click()
    assert [row[0] for row in rows(opened)] == ["FedAvg", "FedCPD", "Local"]


def test_best_is_bold_and_second_underlined(opened):
    best, second = (opened.find_element("css selector", f"#methods .{mark}") for mark in ("best", "second"))
    assert best.text == "70.00 ± 14.14" and best.value_of_css_property("font-weight") == "700"
    assert second.text == "45.00 ± 7.07" and "underline" in second.value_of_css_property("text-decoration")


def test_pointing_at_a_curve_reads_its_value_and_a_click_hides_it(opened):
    from selenium.webdriver import ActionChains

    assert legend(opened) == {"FedAvg": "45.00 ± 7.07", "FedCPD": "70.00 ± 14.14", "Local": "5.00"}
    chart = opened.find_element("css selector", ".chart svg")
    ActionChains(opened).move_to_element(chart).perform()  # the middle of rounds 0 to 2
    assert opened.find_element("css selector", ".legend > output").text == "round 1"
    assert legend(opened) == {"FedAvg": "22.50 ± 3.54", "FedCPD": "35.00 ± 7.07", "Local": "2.50"}
    lines = len(chart.find_elements("css selector", "polyline"))
    opened.find_element("css selector", ".legend button").click()
    assert legend(opened)["FedAvg"] == "" and len(chart.find_elements("css selector", "polyline")) == lines - 1 == 2


def test_other_numbers_and_axes_can_be_chosen(opened):
    from selenium.webdriver.support.ui import Select

    show, over = map(Select, opened.find_elements("css selector", ".controls select"))
    assert [option.get_attribute("value") for option in show.options] == [
        *("test_acc", "test_acc_after", "forgetting", "train_loss"),
    ]
    show.select_by_value("train_loss")
    over.select_by_value("megabytes")
    assert legend(opened)["Local"] == "1.000"
    texts = [text.text for text in opened.find_elements("css selector", ".chart svg text")]
    assert "traffic of all clients so far (MB)" in texts and {"0", "3"} <= set(texts)  # after one round: 2 + 1 MB
    opened.find_element("css selector", ".controls input").click()  # logarithmic: nothing at 0
    assert len(opened.find_elements("css selector", ".chart svg circle")) == 3


def test_dragging_looks_closer_and_a_double_click_goes_back(opened):
    from selenium.webdriver import ActionChains

    chart = opened.find_element("css selector", ".chart svg")

    def first_point():
        points = chart.find_element("css selector", "polyline").get_attribute("points").split()
        return len(points)

    assert first_point() == 3
    width = chart.size["width"]
    mouse = ActionChains(opened).move_to_element_with_offset(chart, -width // 8, 0).click_and_hold()
    mouse.move_to_element_with_offset(chart, width // 2 - 2, 0).release().perform()
    assert first_point() == 2  # rounds 1 and 2
    ActionChains(opened).double_click(chart).perform()
    assert first_point() == 3


def test_clients_can_be_read_and_runs_searched(opened):
    titles = opened.find_elements("css selector", "#clients circle title")
    assert titles[1].get_attribute("textContent") == "FedAvg, client 1: 55.00 %"
    assert len(rows(opened, "runs")) == 5
    opened.find_element("id", "filter").send_keys("--seed 1")
    assert [row[3] for row in rows(opened, "runs")] == ["1", "1"]
