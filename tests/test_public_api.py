"""The rules of the public API that a program can check."""

import inspect
import re

import pytest

import beamtree as bt


def test_the_door_has_about_25_names_and_each_says_what_it_is_for():
    assert 20 <= len(bt.__all__) <= 30
    for name in set(bt.__all__) - {"PAD"}:
        text = inspect.getdoc(getattr(bt, name))
        assert text, name
        assert len(text.splitlines()[0]) > 20, name


def test_the_pairs_of_the_door_match():
    assert {"load_data", "load_model", "save_model"} <= set(bt.__all__)
    assert not {"load", "save"} & set(dir(bt))


@pytest.mark.parametrize("name", sorted(set(bt.__all__) - {"PAD"}))
def test_arguments_of_the_door_are_listed_one_by_one_where_there_are_many(name):
    thing = getattr(bt, name)
    methods = [] if inspect.isfunction(thing) else [each for key, each in vars(thing).items() if key[0] != "_"]
    methods = [each.__func__ if isinstance(each, classmethod) else each for each in methods]
    own = [] if inspect.ismodule(thing) else [thing]  # a class describes what makes it
    for described in (*own, *filter(inspect.isfunction, methods)):
        arguments = [word for word in inspect.signature(described).parameters if word not in ("self", "cls")]
        if len(arguments) <= 4:
            continue
        text = inspect.getdoc(described) or ""
        for argument in arguments:
            assert re.search(rf"^    {argument}: ", text, flags=re.M), f"{described.__qualname__}: {argument}"


def test_one_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+", bt.__version__)
