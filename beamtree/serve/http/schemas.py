"""Schemas of the JSON bodies of requests and responses."""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StringConstraints,
)

from beamtree.errors import parse_int

MAX_ID_LENGTH = 500  # characters
MAX_INT = 2**63 - 1
Text = Annotated[str, StringConstraints(strict=True, max_length=MAX_ID_LENGTH)]
Expression = Annotated[str, StringConstraints(strict=True, max_length=2000)]
Int64 = Annotated[StrictInt, Field(ge=-MAX_INT, le=MAX_INT)]
Id = Text | Int64  # 17 and "17" are the same id
Size = Annotated[StrictInt, Field(ge=1, le=MAX_INT)]
Number = StrictFloat | Int64
EventTime = StrictInt | StrictFloat | Text
TIMES = "When each event of `history` happened: dates or Unix times. Events are put in their order."
WHOLE_NUMBER = BeforeValidator(lambda value: parse_int(value) if isinstance(value, str) else value)  # of a query


class RequestBody(BaseModel):
    """Unknown fields are rejected, so that typing errors are noticed."""

    model_config = ConfigDict(extra="forbid")


class BoostBody(RequestBody):
    """A factor of the scores of some items: give items or where."""

    factor: Number
    items: list[Id] = []
    where: Expression | None = None


class FreshBody(RequestBody):
    """Places for new items."""

    days: Number = Field(description="Items younger than this are new.")
    least: StrictInt = Field(default=1, description="How many items of an answer are new, at least.")


class RulesBody(RequestBody):
    """What the items of an answer must keep to."""

    # Kinds and lengths of values, for the OpenAPI document and its errors. `query.Rules` says which values make sense,
    # to Python and to files too. Neither refuses all that the other does.
    boosts: list[BoostBody] = []
    at_most: dict[str, StrictInt] = Field(
        default={}, description="How many items may have the same value of a column; one or two columns."
    )
    pins: list[Id] | dict[str, Id] = Field(default=[], description="Ids for the first places, or by place.")
    diversity: Number = Field(default=0, description="0: only the score counts; 1: only variety.")
    fresh: FreshBody | None = Field(default=None, description="How many items are new, at least.")


class SearchBody(RequestBody):
    """Options of a search."""

    m: Size = Field(default=10, description="Number of items; fewer are returned only where fewer are available.")
    beam_size: Size | list[Size] | None = Field(
        default=None, description="k, or one width per level; the service's default unless given. At least m."
    )
    search: Literal["auto", "beam", "scan"] = Field(
        default="auto",
        description="beam; scan, which scores every item; auto: a beam with a beam_size, else what the service takes.",
    )
    exclude_seen: StrictBool = Field(default=False, description="Whether to leave out the items of the history.")
    allowed: list[Id] | None = Field(default=None, description="Ids that may be recommended; all unless given.")
    exclude: list[Id] = Field(default=[], description="Ids that may not be recommended.")
    category: Text | None = Field(default=None, description="Only items of this category and its subcategories.")
    where: Expression | None = Field(
        default=None, description="Only items for which this is true: category == 'lamps' and price < 50"
    )
    rules: RulesBody | None = Field(default=None, description="Boosts, limits, pins and diversity.")
    context: dict[str, Id | StrictFloat | StrictBool | None] | None = Field(
        default=None, description="What is known of the request, such as country and hour; see docs/context.md."
    )
    time: EventTime | None = Field(
        default=None,
        description="Of the request, for parts that know it: a date or a Unix time; now unless given.",
    )
    timeout_ms: Size | None = Field(default=None, description="Deadline; 504 when it is exceeded.")


class RecommendBody(SearchBody):
    """Exactly one of history, histories, user and users."""

    history: list[Id] | None = Field(default=None, description="Ids, oldest first.")
    histories: list[list[Id]] | None = Field(default=None, description="Several histories.")
    times: list[EventTime] | list[list[EventTime]] | None = Field(
        default=None, description=f"{TIMES} With `histories` one list for each, empty where they are not known."
    )
    user: Id | None = Field(default=None, description="A user of the log.")
    users: list[Id] | None = Field(default=None, description="Several users of the log.")


class ExplainBody(SearchBody):
    """Exactly one of history and user; the paths of `items` are followed besides those of the results."""

    history: list[Id] | None = Field(default=None, description="Ids, oldest first.")
    times: list[EventTime] | None = Field(default=None, description=TIMES)
    user: Id | None = Field(default=None, description="A user of the log.")
    items: list[Id] = Field(
        default=[], description="Items to explain: what gives them their scores, and where were they lost?"
    )
    reasons: StrictBool = Field(default=True, description="Whether to say what each event gives to `items`.")
    without: Text | None = Field(default=None, description="A part of the score to leave out; see parts in /v1/model.")


class Item(RequestBody):
    """The fields of an item, and any column of the table of items: what is missing stays, and null clears it."""

    model_config = ConfigDict(extra="allow")  # columns, which `Catalogue.typed` checks

    title: Text | None = None
    category: Text | list[Text] | None = None
    like: list[Id] | None = Field(default=None, description="Similar items; all must be known.")
    histories: list[list[Id]] | None = Field(
        default=None, description="Histories of users before they chose this item, oldest first."
    )
    vector: list[StrictFloat | StrictInt] | None = Field(
        default=None, description="Of the same length as the item vectors of the run."
    )


class NamedItem(Item):
    """An item with its id."""

    item: Id


class ItemsRequest(RequestBody):
    """Items to add or change, all or none."""

    items: list[NamedItem] = Field(min_length=1)


TIME = "As in the log: a number, or a date such as 2026-12-31T23:59:59Z. The same user, item and time count once."


class EventsOfUser(RequestBody):
    """Items that a user chose, newest last."""

    user: Id
    items: list[Id] = Field(min_length=1)
    time: EventTime | None = Field(default=None, description=TIME)


class EventsRequest(RequestBody):
    """Items that a user chose, newest last; or those of several users, in `events`."""

    user: Id | None = None
    items: list[Id] | None = Field(default=None, min_length=1)
    time: EventTime | None = Field(default=None, description=TIME)
    events: list[EventsOfUser] | None = Field(default=None, min_length=1, description="Instead of user and items.")
    id: Text | None = Field(default=None, description="Idempotency key: a request with the same id counts once.")


class LoadRun(RequestBody):
    """The run to serve."""

    run: Text = Field(description="A folder beside the one that is served.")


class TensorBody(BaseModel):
    """A tensor of the Open Inference Protocol; `data` may be nested or flat."""

    name: Text
    shape: list[Annotated[StrictInt, Field(ge=0, le=MAX_INT)]] = Field(max_length=8)
    datatype: Text
    parameters: dict[str, Any] = {}
    data: list[Any]


class InferBody(BaseModel):
    """A request of the Open Inference Protocol."""

    id: Text | None = None
    parameters: dict[str, Any] = Field(default={}, description="m, beam_size, exclude_seen, timeout_ms")
    inputs: list[TensorBody] = Field(max_length=8)
    outputs: list[dict[str, Any]] | None = None


class Degraded(BaseModel):
    """How a response was degraded under load."""

    beam_size: int | list[int]
    reason: str


class Result(BaseModel):
    """The items for one history, best first."""

    items: list[str]
    scores: list[float]
    ranks: list[int]
    titles: list[str | None] | None = None
    user: str | None = None
    unknown: list[str]
    popular: bool
    notes: list[str]
    rules: list[list[str]] | None = None


class Recommendations(BaseModel):
    """One result for each history or user, in their order."""

    model: str
    version: str
    degraded: Degraded | None
    milliseconds: float
    results: list[Result]


class CatalogueItem(BaseModel):
    """An item of the catalogue."""

    item: str
    title: str | None = None
    category: str | None = None
    events: int | None = None
    hidden: bool = False
    attributes: dict[str, Any] | None = Field(default=None, description="The columns of the table of items.")


class Items(BaseModel):
    """Items that match a query."""

    items: list[CatalogueItem]


class Users(BaseModel):
    """Users of the log and of later events that match a query."""

    users: list[str]


class User(BaseModel):
    """The history of a user, oldest first."""

    user: str
    history: list[CatalogueItem]


class Map(BaseModel):
    """The upper levels of the tree: the number of items below each node, and its name."""

    levels: int
    items: list[int]
    events: list[int]
    names: list[str]


class Losses(BaseModel):
    """Where relevant items are lost: by level, and by m."""

    users: int
    beam_size: int
    levels: list[dict[str, float]]
    cuts: list[dict[str, float]]
    advice: str
    note: str


class ExplainResponse(BaseModel):
    """The search for one history, level by level."""

    model: str
    version: str
    milliseconds: float
    unknown: list[str]
    explanation: dict[str, Any]


class ChangeResult(BaseModel):
    """The effect of a change, and the first version that includes it."""

    changed: bool
    version: str
    count: int | None = None  # changed items or events, for requests with several
    added: int | None = None  # items among them that are new
    known: int | None = None  # events of known items


class Model(BaseModel):
    """The model in use."""

    model_config = ConfigDict(extra="allow")
    name: str
    version: str


class Problem(BaseModel):
    """An error, and what to do about it."""

    error: str
    hint: str
