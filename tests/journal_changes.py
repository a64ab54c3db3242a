"""Changes of a live model as a journal has them, what a model knows after them, and functions that fail."""

import contextlib
import os


def change(live, draw):
    kind = draw.random()
    if kind < 0.1:
        live.record_run(f"run {draw.randrange(3)}")
    elif kind < 0.3:
        item = draw.choice([f"i{draw.randrange(30):02}", f"new {draw.randrange(5)}"])
        live.record_events([(f"user {draw.randrange(3)}", [item], draw.choice([None, draw.randrange(100)]))])
        if draw.random() < 0.1:
            live.retire_events(draw.randrange(20))
    else:
        item = draw.choice([f"new {draw.randrange(5)}", f"i{draw.randrange(5):02}"])
        like = (draw.choice([f"new {draw.randrange(5)}", f"i{draw.randrange(8):02}"]),)
        if (kind := draw.random()) < 0.3:
            live.remove_items([item])
        elif kind < 0.4:
            live.forget_items([item])
        else:
            facts = {"like": like, "title": f"title {draw.randrange(100)}", "category": None}
            told = {name: facts[name] for name in draw.sample(sorted(facts), draw.randrange(4))}
            with contextlib.suppress(ValueError):  # like one that is not known
                live.update_items({item: told})


def state(live):
    """All that is known of items and users."""
    names = [f"new {number}" for number in range(5)] + [f"i{number:02}" for number in range(30)]
    there = {name: live.catalogue.titles[live.ids.find([name])[0]] for name in names if live.is_visible(name)}
    events = {user: row for user, row in live.events.items() if row}
    chosen = {user: [live.ids[number] for number in live.history(user).items] for user in events}
    return there, events, chosen, live.version, live._items


def event(text):
    return {"kind": "events", "user": "u", "items": [text]}


def failing(number, function=None):
    """A function of the system that fails, at first after it was done."""

    def call(*args):
        if function is not None:
            function(*args)
        raise OSError(number, os.strerror(number))

    return call
