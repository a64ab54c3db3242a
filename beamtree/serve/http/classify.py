"""The application of a classifier: labels of texts or features, why, and labels that change."""

import warnings
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import Field, StrictFloat, StrictInt, StringConstraints
from starlette.responses import Response
from starlette.types import ASGIApp

from beamtree.classify import Classifier
from beamtree.classify.matrix import Matrix, from_dicts
from beamtree.data.catalogue import search_texts
from beamtree.data.ids import as_id
from beamtree.diagnose.explore import labels_page
from beamtree.live.labels import LiveClassifier
from beamtree.serve.http.access import Access, Limits
from beamtree.serve.http.common import make_application
from beamtree.serve.http.errors import (
    SCHEMA_HINT,
    ApiError,
    check_limit,
    json_response,
    read_only_error,
    storing,
)
from beamtree.serve.http.item_routes import Limit, SearchText, parse_item_id
from beamtree.serve.http.metrics import Metrics
from beamtree.serve.http.openapi import Example, put_examples
from beamtree.serve.http.schemas import ChangeResult, Id, RequestBody, Size, Text

DocumentText = Annotated[str, StringConstraints(strict=True, max_length=1 << 20)]
Features = dict[str, StrictFloat | StrictInt]


class LabelsBody(RequestBody):
    """Exactly one of text, texts and features."""

    text: DocumentText | None = Field(default=None, description="A text.")
    texts: list[DocumentText] | None = Field(default=None, description="Several texts.")
    features: list[Features] | None = Field(
        default=None, description="For classifiers of features: one object from number to value per document."
    )
    m: Size = Field(default=5, description="Labels per document; fewer only where fewer are allowed.")
    beam_size: Size | None = Field(default=None, description="k; that of the classifier unless given.")
    allowed: list[Id] | None = Field(default=None, description="Ids of labels that may be found; all unless given.")
    exclude: list[Id] = Field(default=[], description="Ids of labels that may not be found.")


class ExplainBody(RequestBody):
    """A label, and one of text and features."""

    text: DocumentText | None = Field(default=None, description="A text.")
    features: Features | None = Field(
        default=None, description="For classifiers of features: an object from number to value."
    )
    label: Id


class LabelBody(RequestBody):
    """A new label needs a name, or a few documents. A field that is left out keeps its value, null clears it."""

    name: Text | None = None
    texts: list[DocumentText] | None = Field(default=None, description="Documents with this label.")
    features: list[Features] | None = Field(
        default=None, description="For classifiers of features: documents with this label."
    )


class ListedLabel(LabelBody):
    """A label of several."""

    label: Id


class ManyLabelsBody(RequestBody):
    """Labels to add or to change."""

    labels: list[ListedLabel] = Field(min_length=1)


class ClassifierService:
    """A classifier that is served over HTTP; its labels can change if it has a journal."""

    def __init__(
        self, live: LiveClassifier, name: str, access: Access | None = None, limits: Limits | None = None
    ) -> None:
        self.live, self.name = live, name
        self.access, self.limits, self.metrics = access or Access(), limits or Limits(), Metrics()
        self.stopping = False

    def change(self, kind: str, change: Callable[[], int]) -> Response:
        """Make a change; what it did."""
        if self.live.journal is None:
            raise read_only_error()
        with storing(self.metrics):
            count = change()
        self.metrics.changes.labels(kind).inc(count)
        return json_response({"changed": count > 0, "version": str(self.live.snapshot.version), "count": count})

    def ready_json(self) -> dict[str, Any]:
        """Whether it takes requests."""
        return {"ready": not self.stopping}

    def model_json(self) -> dict[str, Any]:
        """What is served."""
        version, classifier = self.live.snapshot
        found = {"name": self.name, "labels": classifier.model.num_labels, "documents": classifier.model.labels.rows}
        more = {
            "beam_size": classifier.beam_size,
            "text": classifier.takes_text,
            "changes": version,
            "version": str(version),
        }
        return {**found, **more}

    def update_metrics(self) -> None:
        """Set the metrics that are read from the classifier."""
        self.metrics.changed.set(self.live.snapshot.version)
        self.metrics.items.set(int(self.live.snapshot.classifier.model.visible.sum()))

    def close(self) -> None:
        """Nothing waits: requests are answered in threads of the server."""

    def fields(self, body: LabelBody) -> dict[str, Any]:
        """The fields of a label that were sent."""
        sent = body.model_fields_set
        if {"texts", "features"} <= sent:
            raise ApiError(422, "give texts or features, not both", SCHEMA_HINT)
        documents = body.texts if "texts" in sent else body.features
        check_limit("documents", len(documents or ()), self.limits.histories, "documents")
        fields: dict[str, Any] = {"name": body.name} if "name" in sent else {}
        return fields | ({"documents": documents} if sent & {"texts", "features"} else {})


def read_documents(
    classifier: Classifier, text: str | None, texts: list[str] | None, features: list[Features] | None
) -> tuple[Any, Matrix]:
    """The documents of a request, in one of three forms, and their features; a 422 that names the field if it fails."""
    field = "text" if text is not None else "texts" if texts is not None else "features"
    try:
        documents: Any = [text] if text is not None else texts
        if features is not None:
            documents = from_dicts(features, classifier.model.num_features)
        return documents, classifier.features_of(documents)
    except ValueError as error:
        raise ApiError(422, f"{field}: {error}", SCHEMA_HINT) from error


def body_examples(classifier: Classifier) -> list[Example]:
    """Valid bodies for every path and method that takes one."""
    label, number = classifier.ids.name(0), {"0": 1.0}
    document: dict[str, Any] = {"text": "a text"} if classifier.takes_text else {"features": number}
    documents: dict[str, Any] = {"texts": ["a text"]} if classifier.takes_text else {"features": [number]}
    one = {"a text": {"text": "a text", "m": 5}} if classifier.takes_text else {}
    return [
        ("/v1/labels", "post", {**one, "several documents": {**documents, "m": 5, "exclude": [label]}}),
        ("/v1/explain", "post", {"a label": {**document, "label": label}}),
        ("/v1/labels/{label}", "put", {"a name": {"name": "A label"}}),
        ("/v1/labels", "put", {"by documents": {"labels": [{"label": "a new label", **documents}]}}),
    ]


def make_classifier_app(service: ClassifierService) -> ASGIApp:
    """The application of a classifier."""

    def complete(schema: dict[str, Any]) -> None:
        schema["components"]["schemas"]["LabelsBody"]["properties"]["m"]["maximum"] = service.limits.m
        classifier = service.live.snapshot.classifier
        put_examples(schema, body_examples(classifier), {"label": classifier.ids.name(0)})

    return make_application(
        service, [label_routes(service)], description="Labels of documents.", page=labels_page(), complete=complete
    )


def label_routes(service: ClassifierService) -> APIRouter:
    """The labels of documents, and labels that change. Searches hold no lock of the interpreter, so they are parallel.

    A request reads the snapshot once, so that it has one consistent model while labels change.
    """
    router, live, limits = APIRouter(), service.live, service.limits

    @router.post("/v1/labels")
    def labels(body: LabelsBody) -> Response:
        """The best labels of one or several documents."""
        given = [each for each in (body.text, body.texts, body.features) if each is not None]
        if len(given) != 1:
            raise ApiError(422, "give exactly one of text, texts and features", SCHEMA_HINT)
        check_limit("m", body.m, limits.m, "labels")
        check_limit("beam_size", body.beam_size or 1, limits.beam_size, "groups")
        check_limit("allowed and exclude", len(body.allowed or ()) + len(body.exclude), limits.listed, "ids")
        check_limit("documents", len(body.texts or body.features or ()), limits.histories, "documents")
        classifier = live.snapshot.classifier
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a document without a known word is marked in its result
            x = read_documents(classifier, body.text, body.texts, body.features)[1]
            try:
                found, scores = classifier.find(x, body.m, body.beam_size, body.allowed, body.exclude or None)
            except ValueError as error:
                raise ApiError(422, str(error), SCHEMA_HINT) from error
        ids = classifier.ids.names
        results = [
            {
                "labels": [
                    {
                        "label": ids[label],
                        **({"name": title} if (title := classifier.name_of(ids[label])) else {}),
                        "score": float(s),
                    }
                    for label, s in zip(row, row_scores, strict=True)
                    if label >= 0
                ],
                "known_features": int(x.offsets[index + 1] - x.offsets[index]),
            }
            for index, (row, row_scores) in enumerate(zip(found, scores, strict=True))
        ]
        return json_response(results[0] if body.text is not None else {"results": results})

    @router.post("/v1/explain")
    def explain(body: ExplainBody) -> Response:
        """Why a label has its score for a document: what each part gives, and which words and documents count."""
        if (body.text is None) is (body.features is None):
            raise ApiError(422, "give exactly one of text and features", SCHEMA_HINT)
        classifier = live.snapshot.classifier
        features = None if body.features is None else [body.features]
        document, _ = read_documents(classifier, body.text, None, features)
        try:
            return json_response({**classifier.explain(document, body.label), "label": as_id(body.label)})
        except ValueError as error:
            raise ApiError(422, str(error), SCHEMA_HINT) from error

    # Labels

    @router.get("/v1/labels")
    def find_labels(query: SearchText = "", limit: Limit = 20) -> Response:
        """Find labels by a part of their id or name."""
        classifier = live.snapshot.classifier
        texts = ((label.casefold(), classifier.name_of(label).casefold()) for label in classifier.ids.names)
        found = [classifier.ids.name(number) for number in search_texts(texts, query, limit)]
        return json_response({"labels": [classifier.describe_label(label) for label in found]})

    @router.get("/v1/labels/{label:path}")
    def get_label(label: str) -> Response:
        """A label's name and number of documents, and whether it is hidden."""
        found = live.snapshot.classifier.describe_label(as_id(label))
        if found is None:
            raise ApiError(404, "there is no such label", "search with /v1/labels?query=…")
        return json_response(found)

    @router.put("/v1/labels/{label:path}", responses={200: {"model": ChangeResult}})
    def put_label(label: str, body: Annotated[LabelBody | None, Body()] = None) -> Response:
        """Add a label by its name or a few documents, show a removed one again, or change it; idempotent."""
        labels = {parse_item_id(label, "label"): service.fields(body or LabelBody())}
        return service.change("put_label", lambda: live.put_labels(labels))

    @router.put("/v1/labels", responses={200: {"model": ChangeResult}})
    def put_labels(body: ManyLabelsBody) -> Response:
        """Add or change many labels, all or none of them."""
        check_limit("labels", len(body.labels), limits.changes, "labels")
        labels = {parse_item_id(as_id(each.label), "label"): service.fields(each) for each in body.labels}
        if len(labels) < len(body.labels):
            raise ApiError(422, "labels: an id occurs twice", "list every label once")
        return service.change("put_label", lambda: live.put_labels(labels))

    @router.delete("/v1/labels/{label:path}", responses={200: {"model": ChangeResult}})
    def delete_label(label: str) -> Response:
        """Hide a label until it is put again; idempotent."""
        name = parse_item_id(label, "label")
        return service.change("delete_label", lambda: live.remove_labels([name]))

    return router
