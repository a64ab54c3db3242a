"""The training options are the same in TrainingOptions, in Recommender and in `beamtree train`."""

import inspect
import re
from dataclasses import fields

import pytest
import typer

import beamtree as bt
from beamtree.cli.app import app
from beamtree.cli.options import in_new_spelling, training_help
from beamtree.methods import METHODS
from beamtree.train import TrainingOptions
from beamtree.train.optimizer import OPTIMIZERS
from beamtree.train.recipes import RECIPES

OPTIONS = {field.name: field for field in fields(TrainingOptions)}


def test_recommender_takes_the_training_options_and_the_kind_of_frames():
    parameters = inspect.signature(bt.Recommender).parameters
    assert list(parameters) == [*OPTIONS, "frame"]
    for name, field in OPTIONS.items():
        assert parameters[name].default == field.default, name
        assert parameters[name].annotation == field.type, name
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY


def test_recommender_describes_every_option():
    assert list(training_help()) == [*OPTIONS, "frame"]


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
    with pytest.raises(ValueError, match="split=typo: choose halves, leave-one-out or time:DATE"):
        bt.Recommender().fit("no such log.csv", split="typo")


def test_every_option_is_passed_on():
    values = {name: object() for name in OPTIONS} | {"device": "cpu", "tree": "random", "items": None, "vectors": None}
    values |= {"method": "plt", "recipe": "deep", "optimizer": "lazy"}
    shop = bt.Recommender(**values)
    assert {name: getattr(shop._options, name) for name in OPTIONS} == values


def test_old_spellings_of_options_work_with_a_note(capsys):
    words = ["--least", "0.2", "--cost=1", "file"]
    assert in_new_spelling(words, {"--min-weight", "--C"}) == ["--min-weight", "0.2", "--C=1", "file"]
    assert "--least is called --min-weight now" in capsys.readouterr().err
    assert in_new_spelling(words, {"--other"}) == words
