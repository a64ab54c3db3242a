"""Wrong requests: every answer names the field and what to do, in our own words, in both services."""

import copy
import json
import re

import pytest
from error_replies import check_error
from serving import make_service, open_changing, save_run, serving

WRONG = None, True, -1, 1.5, 2**70, "x", "x" * 3000, "\ud800", [], {}, [None], {"a": {}}
LEFT_OUT = object()
TEXT = "topic1word1 topic1word2"
CLASSIFIER_BODIES = [
    ("/v1/labels", "post", {"text": TEXT, "m": 2, "beam_size": 3, "allowed": ["t1"], "exclude": []}),
    ("/v1/labels", "post", {"texts": [TEXT]}),
    ("/v1/explain", "post", {"text": TEXT, "label": "t1"}),
    ("/v1/labels/t1", "put", {"name": "One", "texts": [TEXT]}),
    ("/v1/labels", "put", {"labels": [{"label": "t2", "name": "Two"}]}),
]


def paths_in(value, path=()):
    """All places in a body."""
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from paths_in(entry, (*path, key))


def changed(body, path, value):
    """The body with another value at a path."""
    if not path:
        return value
    body = copy.deepcopy(body)
    at = body
    for key in path[:-1]:
        at = at[key]
    if value is LEFT_OUT:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return body


def wrong_bodies(body, fields):
    """The places that are changed, and bodies with something else there."""
    for path in paths_in(body):
        for value in WRONG:
            yield path, changed(body, path, value)
        if path:
            yield path, changed(body, path, LEFT_OUT)
    for field in (*fields, "surplus"):
        for value in WRONG:
            yield (field,), {**body, field: value}


def check_bodies(client, bodies, schema):
    refused, unnamed, asked = 0, [], set()
    for path, method, body in bodies:
        ours = next(each for each in schema["paths"] if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", each), path))
        for content in schema["paths"][ours][method]["requestBody"]["content"].values():
            names = re.findall(r"schemas/(\w+)", json.dumps(content["schema"]))
        fields = schema["components"]["schemas"][names[0]]["properties"]
        for place, wrong in wrong_bodies(body, fields):
            sent = json.dumps(wrong)
            if (path, method, sent) in asked:  # examples have wrong bodies in common
                continue
            asked.add((path, method, sent))
            reply = client.request(method, path, content=sent, headers={"content-type": "application/json"})
            if reply.status_code < 400:
                continue
            where = method, path, sent[:200]
            assert reply.status_code in (400, 404, 422), (where, reply.text)
            error = check_error(reply, where)["error"]
            refused += 1
            keys = [key for key in place if isinstance(key, str)]
            if reply.status_code == 422 and keys and not any(key in error for key in keys):
                unnamed.append((where, error))
    assert not unnamed
    return refused


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    run = save_run(tmp_path_factory.mktemp("errors") / "shop")
    with serving(make_service(run, open_changing)) as client:
        yield client


def test_every_wrong_body_is_answered_in_our_words_with_the_name_of_the_field(client):
    schema = client.get("/openapi.json").json()
    bodies = []
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            if "requestBody" in operation:
                examples = operation["requestBody"]["content"]["application/json"]["examples"].values()
                filled = path.format(item="i9", name="shop", version=client.get("/v1/model").json()["version"])
                bodies += [(filled, method, example["value"]) for example in examples]
    rules = {"boosts": [{"factor": 2.0, "items": ["i1"]}], "at_most": {"category": 2}, "pins": ["i2"], "diversity": 0.5}
    bodies.append(
        ("/v1/recommend", "post", {"history": ["i1"], "rules": rules, "context": {}, "where": "category == 'x'"})
    )
    assert len(bodies) > 10
    assert check_bodies(client, bodies, schema) > 1000


def test_every_wrong_body_for_a_classifier_is_answered_in_our_words(label_client):
    assert check_bodies(label_client, CLASSIFIER_BODIES, label_client.get("/openapi.json").json()) > 300


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("GET", "/v1/items?limit=x", "limit"),
        ("GET", "/v1/items?limit=0", "limit"),
        ("GET", "/v1/items?limit=1000", "limit"),
        ("GET", "/v1/items?query=" + "x" * 300, "query"),
        ("GET", "/v1/users?limit=1.5", "limit"),
        ("GET", "/v1/similar/i1?m=-1", "m:"),
        ("DELETE", "/v1/events", "before"),
        ("DELETE", "/v1/events?before=x", "before"),
        ("DELETE", "/v1/events?before=" + "9" * 300, "before"),
        ("DELETE", "/v1/items/i1?forget=maybe", "forget"),
        ("PUT", "/v1/items/%00", "item"),
    ],
)
def test_a_wrong_parameter_is_named(client, method, path, name):
    reply = client.request(method, path, headers={"content-type": "application/json"})
    assert reply.status_code == 422
    assert name in check_error(reply, path)["error"]


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", "the body is missing"),
        ("null", "the body is missing"),
        ("{", "the body is not JSON: see character 1"),
        ("[]", "the body: this is a list, not an object"),
        ("\xff", "the body is not JSON"),
        ("[" * 100_000, "the body cannot be read: it is nested too deeply"),
        ('{"m": ' + "9" * 5000 + "}", "a number with thousands of digits"),
    ],
)
def test_a_body_that_is_no_object_is_said_to_be_none(client, label_client, content, error):
    for service, path in ((client, "/v1/recommend"), (client, "/v1/events"), (label_client, "/v1/labels")):
        reply = service.post(path, content=content, headers={"content-type": "application/json"})
        assert reply.status_code in (400, 422)
        assert error in check_error(reply, content[:50])["error"]


@pytest.mark.parametrize(
    ("body", "error", "hint"),
    [
        ({"histroy": ["i1"]}, "histroy: there is no such field", "did you mean history? the fields are m, beam_size"),
        ({"history": ["i1"], "m": 1001}, "m=1001 is over the limit", "use at most 1000"),
        ({"history": ["i1"], "m": 0}, "m: this number is too small", "give a whole number from 1 to 1000"),
        ({"history": ["i1"], "m": "5"}, "m: this is text, not a whole number", "give a whole number from 1 to 1000"),
        (
            {"history": ["i1", [2]]},
            "history[1]: this is a list, not text or a whole number",
            "give text of at most 500",
        ),
        ({"history": ["i1"], "beam_size": [20, "x"]}, "beam_size[1]: this is text", "give a whole number from 1"),
        ({"history": 1, "m": 0, "k": 3}, "m: this number is too small (and 2 more)", "from 1 to 1000"),
        ({"rules": {"boosts": [{}]}}, "rules.boosts[0].factor: this field is missing", "add factor: a number"),
        ({"rules": {"pins": {"1": []}}}, "rules.pins.1: this is a list, not text or", "give text of at most 500 char"),
        ({"history": ["i1"], "search": "x"}, "search: this is none of the choices", "give auto, beam or scan"),
        ({"history": ["i1"], "context": {"a": []}}, "context.a: this is a list", "or a number, or true or false"),
    ],
)
def test_the_answer_says_what_is_wrong_and_what_to_send(client, body, error, hint):
    content = check_error(client.post("/v1/recommend", json=body), body)
    assert error in content["error"]
    assert hint in content["hint"]
