"""Options are listed once: training options in TrainingOptions, the columns of a log in LogColumns.

The front door and the commands are compared with these lists.
"""

import inspect
import re
from dataclasses import fields, replace

import polars as pl
import pytest
import typer

import beamtree as bt
from beamtree.cli.app import app
from beamtree.cli.options import in_new_spelling, training_help
from beamtree.ingest.columns import LogColumns
from beamtree.live.renewal import renew
from beamtree.methods import METHODS
from beamtree.train import TrainingOptions
from beamtree.train.optimizer import OPTIMIZERS
from beamtree.train.recipes import RECIPES

OPTIONS = {field.name: field for field in fields(TrainingOptions)}
COLUMNS = {field.name: field for field in fields(LogColumns)}
ALL, ROLES = tuple(COLUMNS), ("user", "item", "time", "time_format")
TAKE_COLUMNS = {
    bt.Recommender.fit: ALL, bt.prepare: ALL,
    bt.Recommender.evaluate: ROLES, bt.Recommender.update: ROLES, renew: ROLES,
}  # fmt: skip
COMMANDS = {"prepare": ALL, "evaluate": ROLES, "retrieve": ROLES, "renew": ROLES}


def described(function):
    """The description of each argument in a docstring."""
    arguments = inspect.getdoc(function).partition("Args:\n")[2]
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", arguments, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


def test_every_column_is_described():
    assert list(described(LogColumns)) == list(COLUMNS)


@pytest.mark.parametrize("function", TAKE_COLUMNS, ids=lambda function: function.__qualname__)
def test_the_columns_of_a_log_have_the_same_names_defaults_and_descriptions(function):
    parameters, texts, expected = inspect.signature(function).parameters, described(function), described(LogColumns)
    assert tuple(name for name in parameters if name in COLUMNS) == TAKE_COLUMNS[function]
    assert tuple(name for name in texts if name in COLUMNS) == TAKE_COLUMNS[function]
    for name in TAKE_COLUMNS[function]:
        assert parameters[name].default is COLUMNS[name].default is None
        assert parameters[name].annotation == COLUMNS[name].type
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert texts[name].partition(" Default: ")[0] == expected[name], name


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_that_read_a_log_have_its_columns_as_options(name):
    command = typer.main.get_command(app).commands[name]
    options = {option.name: option for option in command.params if option.name in COLUMNS}
    assert set(COMMANDS[name]) <= options.keys() <= {*COMMANDS[name], "context"}  # retrieve has that of a request
    for column in COMMANDS[name]:
        assert options[column].default is None
        assert options[column].opts == [f"--{column.replace('_', '-')}"]


def test_recommender_takes_the_training_options_and_the_kind_of_frames():
    parameters = inspect.signature(bt.Recommender).parameters
    assert [name for name in parameters if name in OPTIONS] == list(OPTIONS)
    assert parameters.keys() - OPTIONS.keys() == {"frame", "training"}
    for name, field in OPTIONS.items():
        assert parameters[name].default == field.default, name
        assert parameters[name].annotation == field.type, name
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY


def test_recommender_describes_every_option():
    assert list(training_help()) == list(inspect.signature(bt.Recommender).parameters)


@pytest.mark.parametrize(
    "name", [name for name in OPTIONS if name not in ("scorer", "parts")]
)  # which only Python can give
def test_train_has_every_training_option_with_its_default_and_help(name):
    command = typer.main.get_command(app).commands["train"]
    (option,) = [option for option in command.params if option.name == name]
    assert option.opts == [f"--{name.replace('_', '-')}"]
    assert option.default == OPTIONS[name].default
    assert option.help == training_help()[name]
    assert "In Python" not in option.help


def test_the_help_names_every_method_recipe_and_optimizer():
    for name, table in (("method", METHODS), ("recipe", RECIPES), ("optimizer", OPTIMIZERS)):
        assert set(table) <= set(re.findall(r"[a-z-]+", training_help()[name])), name


@pytest.mark.parametrize("name", ["method", "recipe", "optimizer", "tree", "device", "frame"])
def test_an_unknown_name_is_refused_when_a_recommender_is_made(name):
    with pytest.raises(ValueError, match="typo") as error:
        bt.Recommender(**{name: "typo"})
    assert "\n" not in str(error.value)
    for known in {"method": METHODS, "recipe": RECIPES, "optimizer": OPTIMIZERS}.get(name, ()):
        bt.Recommender(**{name: known})
        assert known in str(error.value)


def test_an_unknown_split_is_refused_before_the_log_is_read():
    choices = "halves, leave-one-out, time, time:30d, time:DATE or pairs:0.1"
    with pytest.raises(ValueError, match=f"split=typo: choose {choices}"):
        bt.Recommender().fit("no such log.csv", split="typo")


def test_every_option_is_passed_on():
    values = {"device": "cpu", "seed": 5, "sequence": None, "refit": False, "tree": "random", "items": None}
    values |= {"vectors": None, "parts": (), "steps": 3, "epochs": None, "arity": 4, "method": "plt", "recipe": "deep"}
    values |= {"scorer": bt.DeepScorer, "beam_size": 6, "nodes": 7, "batch_size": 8, "lr": 0.5, "optimizer": "lazy"}
    values |= {"patience": 9, "minutes": 2.5}
    shop = bt.Recommender(**values)
    assert {name: getattr(shop._options, name) for name in OPTIONS} == values


def test_options_may_be_given_as_one_object_beside_other_arguments():
    table = pl.DataFrame({"item": ["a", "b"], "category": ["x", "y"]})
    shop = bt.Recommender(seed=3, items=table, training=TrainingOptions(method="plt", arity=4, device="cpu"))
    plain = bt.Recommender(seed=3, items=table, method="plt", arity=4)
    assert shop._options == replace(plain._options, items=shop._options.items)
    assert shop._options.items.equals(table)
    categories = bt.Recommender(training=TrainingOptions(tree="category", items=table))
    assert "category" in repr(categories)


@pytest.mark.parametrize("twice", [{"lr": 0.1}, {"method": "plt"}, {"seed": 4}, {"items": "items.csv"}])
def test_an_option_that_is_given_twice_is_an_error(twice):
    with pytest.raises(ValueError, match=f"`{next(iter(twice))}` is given twice"):
        bt.Recommender(**twice, training=TrainingOptions(**twice))


def test_options_as_one_object_are_checked_like_arguments():
    with pytest.raises(ValueError, match="steps=-1: must be 0 or more"):
        bt.Recommender(training=TrainingOptions(steps=-1))
    with pytest.raises(ValueError, match="give a TrainingOptions"):
        bt.Recommender(training={"steps": 1})


def test_train_lists_the_options_in_the_same_order():
    command = typer.main.get_command(app).commands["train"]
    names = [option.name for option in command.params if option.name in OPTIONS]
    assert names == [name for name in OPTIONS if name in names]


def test_old_spellings_of_options_work_with_a_note(capsys):
    words = ["--least", "0.2", "--cost=1", "file"]
    assert in_new_spelling(words, {"--min-weight", "--C"}) == ["--min-weight", "0.2", "--C=1", "file"]
    assert "--least is called --min-weight now" in capsys.readouterr().err
    assert in_new_spelling(words, {"--other"}) == words
