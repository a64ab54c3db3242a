"""The page at /docs in a browser: from this host alone, under its policy, for both services."""

import pytest
from serving import make_service, open_changing, save_run, serving

from beamtree.serve.http.access import Access


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return save_run(tmp_path_factory.mktemp("docs") / "shop")


def execute(tab, address, path):
    """Open a route, send its first example, and return what came back."""
    tab.goto(f"{address}docs")
    tab.wait_for_selector("html[data-ready]")
    route = tab.locator(".opblock-post", has=tab.locator(f"[data-path='{path}']"))
    route.locator(".opblock-summary-control").click()
    route.locator("button.execute").click()
    answer = route.locator(".live-responses-table .response")
    answer.wait_for()
    return answer.inner_text()


@pytest.mark.extended
def test_a_request_is_sent_and_nothing_comes_from_elsewhere(tab, run):
    with serving(make_service(run, open_changing)) as client:
        address = f"http://127.0.0.1:{client.port}/"
        answer = execute(tab, address, "/v1/recommend")
        assert "200" in answer
        assert '"scores"' in answer
        assert all(url.startswith((address, "data:")) for url in tab.asked)
        assert tab.locator(".opblock").count() > 20
        policy = tab.get_attribute("meta[http-equiv]", "content")
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert client.get("/docs/main.py").status_code == client.get("/docs/..%2fapp.py").status_code == 404


@pytest.mark.extended
def test_a_classifier_has_the_page_too(tab, label_client):
    address = f"http://127.0.0.1:{label_client.port}/"
    answer = execute(tab, address, "/v1/labels")
    assert "200" in answer
    assert '"labels"' in answer
    assert all(url.startswith((address, "data:")) for url in tab.asked)
    assert label_client.get("/redoc").status_code == 404


@pytest.mark.extended
def test_a_token_is_asked_for_and_sent(tab, run):
    with serving(make_service(run, open_changing, access=Access(read="secret word"))) as client:
        address = f"http://127.0.0.1:{client.port}/"
        tab.goto(f"{address}docs")
        tab.fill("#token", "secret word")
        tab.press("#token", "Enter")
        tab.wait_for_selector(".opblock")
        assert "200" in execute(tab, address, "/v1/recommend")
        assert "secret" not in tab.evaluate("location.href")
        assert client.get("/openapi.json").status_code == 401
    tab.trouble[:] = [text for text in tab.trouble if "401" not in text]  # the browser's word for the first answer
