"""What is sent and what comes back, as JSON."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StringConstraints

LONGEST = 500  # characters of an id
LARGEST = 2**63 - 1
Text = Annotated[str, StringConstraints(strict=True, max_length=LONGEST)]
Whole = Annotated[StrictInt, Field(ge=-LARGEST, le=LARGEST)]
Id = Text | Whole  # 17 and "17" are the same id
Size = Annotated[StrictInt, Field(ge=1)]


class Sent(BaseModel):
    """A body: words that nobody knows are refused, so that a typing error is seen."""

    model_config = ConfigDict(extra="forbid")


class Who(Sent):
    """Whose next items are asked for, and which may be found."""

    m: Size = Field(default=10, description="How many items; m come back wherever m may be found.")
    beam_size: Size | list[Size] | None = Field(
        default=None, description="k, or one width for each level; the service's own unless given. Not below m."
    )
    exclude_seen: StrictBool = Field(default=False, description="Whether items of the history are left out.")
    allowed: list[Id] | None = Field(default=None, description="Ids that may be found; all unless given.")
    exclude: list[Id] = Field(default=[], description="Ids that may not.")
    category: Text | None = Field(default=None, description="Only items of this category, and of what lies below it.")
    timeout_ms: Size | None = Field(default=None, description="The answer is of no use after that; 504 then.")


class Recommend(Who):
    """One of history, histories, user and users."""

    history: list[Id] | None = Field(default=None, description="Ids, oldest first.")
    histories: list[list[Id]] | None = Field(default=None, description="Several of them.")
    user: Id | None = Field(default=None, description="A user of the log.")
    users: list[Id] | None = Field(default=None, description="Several of them.")


class Explain(Who):
    """One of history and user; `items` are those whose path is followed besides what is found."""

    history: list[Id] | None = Field(default=None, description="Ids, oldest first.")
    user: Id | None = Field(default=None, description="A user of the log.")
    items: list[Id] = Field(default=[], description="Where were these lost, and by how much?")
    without: Text | None = Field(default=None, description="A part of the score to leave out, of /v1/model's parts.")


class Item(Sent):
    """What is known of an item: a field that is left out stays as it is, and null clears it."""

    title: Text | None = None
    category: Text | None = None
    like: list[Id] | None = Field(default=None, description="Items that it resembles; all must be known.")
    histories: list[list[Id]] | None = Field(default=None, description="Of users who chose it next, oldest first.")
    vector: list[StrictFloat | StrictInt] | None = Field(default=None, description="As long as those of the run.")


class NamedItem(Item):
    """An item with its id."""

    item: Id


class ItemsRequest(Sent):
    """Items that are added or changed, all or none of them."""

    items: list[NamedItem] = Field(min_length=1)


WHEN = "When, as in the log: a number, or a date such as 2026-12-31T23:59:59Z."
Moment = StrictInt | StrictFloat | Text


class UserEvents(Sent):
    """What a user chose, newest last."""

    user: Id
    items: list[Id] = Field(min_length=1)
    time: Moment | None = Field(default=None, description=f"{WHEN} The same user, item and time count once.")


class EventsRequest(Sent):
    """What a user chose just now, newest last; or what several users chose, in `events`."""

    user: Id | None = None
    items: list[Id] | None = Field(default=None, min_length=1)
    time: Moment | None = Field(default=None, description=f"{WHEN} The same user, item and time count once.")
    events: list[UserEvents] | None = Field(default=None, min_length=1, description="Instead of user and items.")
    id: Text | None = Field(default=None, description="Of this request: the same id counts once.")


class Swap(Sent):
    """Which run to serve."""

    run: Text = Field(description="A folder beside the one that is served.")


class Tensor(BaseModel):
    """A tensor of the Open Inference Protocol; `data` may be nested or flat."""

    name: Text
    shape: list[Annotated[StrictInt, Field(ge=0, le=LARGEST)]] = Field(max_length=8)
    datatype: Text
    parameters: dict[str, Any] = {}
    data: list[Any]


class Infer(BaseModel):
    """A request of the Open Inference Protocol."""

    id: Text | None = None
    parameters: dict[str, Any] = Field(default={}, description="m, beam_size, exclude_seen, timeout_ms")
    inputs: list[Tensor] = Field(max_length=8)
    outputs: list[dict[str, Any]] | None = None


class Degraded(BaseModel):
    """What load did to an answer."""

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


class Recommended(BaseModel):
    """One result for each history or user, in their order."""

    model: str
    version: str
    degraded: Degraded | None
    milliseconds: float
    results: list[Result]


class Known(BaseModel):
    """What is known of an item."""

    item: str
    title: str | None = None
    category: str | None = None
    events: int | None = None
    hidden: bool = False


class Items(BaseModel):
    """Items that a search found."""

    items: list[Known]


class Users(BaseModel):
    """Users of the log that a search found."""

    users: list[str]


class User(BaseModel):
    """What a user did, oldest first."""

    user: str
    history: list[Known]


class Map(BaseModel):
    """The upper levels of the tree: how many items lie below each node, and what it is called."""

    levels: int
    items: list[int]
    events: list[int]
    names: list[str]


class Losses(BaseModel):
    """Where relevant items are lost: by level, and by how many items are asked for."""

    users: int
    beam_size: int
    levels: list[dict[str, float]]
    cuts: list[dict[str, float]]
    advice: str


class Explained(BaseModel):
    """The search for one history, level by level."""

    model: str
    version: str
    milliseconds: float
    unknown: list[str]
    explanation: dict[str, Any]


class Changed(BaseModel):
    """What a change did, and the version from which on it is seen."""

    changed: bool
    version: str
    count: int | None = None  # items or events that changed, of a request for several
    known: int | None = None  # events of known items


class Model(BaseModel):
    """What is served."""

    model_config = ConfigDict(extra="allow")
    name: str
    version: str


class Problem(BaseModel):
    """What is wrong, and what to do."""

    error: str
    hint: str
