"""The FastAPI application of a classifier: labels of texts or features, and why."""

import warnings
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI
from pydantic import Field, StrictFloat, StrictInt, StringConstraints
from starlette.responses import Response

from beamtree import __version__
from beamtree.classify import Classifier
from beamtree.classify.matrix import Matrix, from_entries
from beamtree.serve.http.errors import ApiError, add_error_handlers, check_limit, json_response
from beamtree.serve.http.schemas import Id, RequestBody, Size

MAX_TEXT, MAX_TEXTS, MAX_M, MAX_BEAM, MAX_LISTED = 1 << 20, 256, 1000, 4000, 100_000
DocumentText = Annotated[str, StringConstraints(strict=True, max_length=MAX_TEXT)]
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
    """A text and a label."""

    text: DocumentText
    label: Id


def make_classifier_app(classifier: Classifier, name: str) -> FastAPI:
    """The application of a classifier. Searches hold no lock of the interpreter, so requests run in parallel."""
    app = FastAPI(title="beamtree", version=__version__, description="Labels of documents.", docs_url=None)
    add_error_handlers(app)

    @app.get("/healthz")
    def healthy() -> Response:
        """Liveness probe."""
        return json_response({"live": True})

    @app.get("/v1/model")
    def model() -> Response:
        """What is served."""
        found = {"name": name, "labels": classifier.model.num_labels, "documents": classifier.model.labels.rows}
        return json_response({**found, "beam_size": classifier.beam_size})

    @app.post("/v1/labels")
    def labels(body: LabelsBody) -> Response:
        """The best labels of one or several documents."""
        given = [each for each in (body.text, body.texts, body.features) if each is not None]
        if len(given) != 1:
            raise ApiError(422, "give exactly one of text, texts and features", "see /openapi.json for the schema")
        check_limit("m", body.m, MAX_M, "labels")
        check_limit("beam_size", body.beam_size or 1, MAX_BEAM, "groups")
        check_limit("allowed and exclude", len(body.allowed or ()) + len(body.exclude), MAX_LISTED, "ids")
        documents: Any = [body.text] if body.text is not None else body.texts
        if documents is not None:
            check_limit("texts", len(documents), MAX_TEXTS, "texts")
        else:
            check_limit("features", len(body.features or ()), MAX_TEXTS, "documents")
            documents = _matrix(body.features or [], classifier.model.num_features)
        exclude = body.exclude or None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a document without a known word is marked in its result
            try:
                x = classifier.features_of(documents)
                found, scores = classifier.find(x, body.m, body.beam_size, body.allowed, exclude)
            except ValueError as error:
                raise ApiError(422, str(error), "change the request") from error
        ids = classifier.labels
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

    @app.post("/v1/explain")
    def explain(body: ExplainBody) -> Response:
        """Why a label has its score for a text."""
        try:
            return json_response(classifier.explain(body.text, body.label))
        except ValueError as error:
            raise ApiError(422, str(error), "change the request") from error

    return app


def _matrix(rows: list[Features], width: int) -> Matrix:
    """Features as a matrix of rows of length 1."""
    index, columns, values = [], [], []
    for row, features in enumerate(rows):
        for name, value in features.items():
            if not name.isdigit() or int(name) >= width or not np.isfinite(value):
                raise ApiError(422, f"feature {name!r} is not one of 0 … {width - 1}, or not a number", "correct it")
            index.append(row)
            columns.append(int(name))
            values.append(float(value))
    if not rows:
        raise ApiError(422, "there are no documents", "send at least one")
    return from_entries(np.array(index, np.int64), np.array(columns, np.int64), np.array(values), (len(rows), width))
