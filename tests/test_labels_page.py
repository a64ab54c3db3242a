"""The page of a classifier in a browser: labels, why, the keyboard, hostile names, light and dark."""

import numpy as np
import pytest
from serving import serving

import beamtree as bt
from beamtree.live.labels import LiveClassifier
from beamtree.serve.http.access import Access
from beamtree.serve.http.classify import ClassifierService, make_classifier_app

HOSTILE = "<img src=x onerror='window.hit = 1'>\u202e</script>"


@pytest.fixture(scope="module")
def classifier():
    words = [[f"topic{t}word{i}" for i in range(6)] for t in range(4)]
    texts = [f"{words[n % 4][n % 6]} {words[n % 4][n // 4 % 6]} <b>bold" for n in range(80)]
    names = {"t1": HOSTILE, "t2": "Topic 2"}
    return bt.Classifier(group=2).fit(texts, [[f"t{n % 4}"] for n in range(80)], names=names, verbose=False)


@pytest.fixture(scope="module")
def address(classifier):
    with serving(ClassifierService(LiveClassifier(classifier, None), "run"), make_classifier_app) as client:
        yield f"http://127.0.0.1:{client.port}/"


def find(tab, address, document):
    tab.goto(address)
    tab.wait_for_selector("html[data-ready]")
    tab.fill("#document", document)
    tab.press("#document", "Control+Enter")
    tab.wait_for_selector("#found .item")


def test_labels_and_why_are_those_of_the_classifier(tab, address, classifier):
    find(tab, address, "topic2word1 topic2word3")
    expected = classifier.predict("topic2word1 topic2word3", m=4)
    assert tab.locator("#found .name").all_text_contents()[0] == "Topic 2"
    shown = [float(score) for score in tab.locator("#found .right").all_text_contents()]
    assert shown == pytest.approx(expected["score"].to_list(), abs=6e-4)
    tab.fill("#m", "2")
    tab.press("#m", "Enter")
    tab.locator("#found .item").nth(2).wait_for(state="detached")  # two are left
    tab.keyboard.press("Tab")  # the beam size, the button, and the first label
    tab.keyboard.press("Tab")
    tab.keyboard.press("Tab")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("#why table")
    why = tab.inner_text("#why")
    assert "Why Topic 2?" in why
    explained = classifier.explain("topic2word1 topic2word3", "t2")
    for text in (
        *explained["parts"],
        explained["features"][0]["feature"],
        f"document {explained['documents'][0]['document']}",
    ):
        assert text in why


def test_names_are_text(tab, address):
    find(tab, address, "topic1word1 topic1word3")
    assert tab.locator("#found .name").all_text_contents()[0] == HOSTILE.replace("\u202e", " ")
    tab.click("#found .item")
    tab.wait_for_selector("#why table")
    assert "<img" in tab.inner_text("#why")
    assert tab.locator("img").count() == 0
    assert tab.evaluate("window.hit") is None


@pytest.mark.extended
def test_a_document_without_a_known_word_and_one_that_is_refused(browser, address):
    tab = browser.new_page()
    find(tab, address, "nothing known")
    assert "no known feature" in tab.inner_text("#note")
    tab.fill("#m", "5000")
    tab.press("#m", "Enter")
    tab.wait_for_selector("#error:not([hidden])")
    assert "over the limit" in tab.inner_text("#error")
    tab.close()


@pytest.mark.extended
def test_features_are_typed_as_json(tab):
    classifier = bt.Classifier(group=2).fit(
        np.eye(3)[np.arange(60) % 3], [[str(n % 3)] for n in range(60)], verbose=False
    )
    with serving(ClassifierService(LiveClassifier(classifier, None), "run"), make_classifier_app) as client:
        find(tab, f"http://127.0.0.1:{client.port}/", '{"2": 1}')
        assert tab.locator("#found .name").all_text_contents()[0] == "2"
        tab.click("#found .item")
        tab.wait_for_selector("#why table")
        tab.fill("#document", "words")
        tab.press("#document", "Control+Enter")
        tab.wait_for_selector("#error:not([hidden])")
        assert "features are JSON" in tab.inner_text("#error")


@pytest.mark.extended
def test_it_follows_light_and_dark_and_fits_a_phone(browser, address):
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme, viewport={"width": 390, "height": 844})
        tab = context.new_page()
        find(tab, address, "topic1word1")
        tab.click("#found .item")
        tab.wait_for_selector("#why table")
        assert tab.evaluate("document.documentElement.dataset.theme") == scheme
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        context.close()


@pytest.mark.extended
def test_a_token_is_asked_for(browser, classifier):
    service = ClassifierService(LiveClassifier(classifier, None), "run", access=Access(read="secret word"))
    with serving(service, make_classifier_app) as client:
        tab = browser.new_page()
        tab.goto(f"http://127.0.0.1:{client.port}/")
        tab.fill("#token", "secret word")
        tab.press("#token", "Enter")
        tab.get_by_text("4 labels").wait_for()
        tab.close()
