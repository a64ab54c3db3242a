"""Names for the items of a made-up market: what they are made for, what they are, of what, and in which colour."""

import polars as pl

PLACES = ("garden", "kitchen", "office", "bedroom", "workshop", "boat", "studio", "school", "nursery", "camp", "hall")
THINGS = ("lamp", "chair", "kettle", "clock", "basket", "shelf", "mirror", "blanket", "box", "bench", "jug", "tray")
MATERIALS = ("oak", "steel", "linen", "glass", "wool", "copper", "paper", "clay", "cork", "leather", "silk", "stone")
COLOURS = ("red", "blue", "green", "white", "black", "yellow", "grey", "brown", "orange", "violet", "silver", "pink")
WORDS = (PLACES, THINGS, MATERIALS, COLOURS)


def item_names(category: pl.Series, arity: int) -> pl.Series:
    """Such as "red oak lamp for the garden, 17", for items by the number of their category, sorted [M].

    A category is a path of `arity` choices on each of four levels, and each choice is a word; where there are more
    choices than words, words come again with a number.
    """
    chosen = []
    for level, words in enumerate(WORDS):
        digit = category // arity ** (len(WORDS) - 1 - level) % arity
        chosen.append(pl.Series([_word(words, n) for n in range(arity)]).gather(digit))
    place, thing, material, colour = chosen
    number = (pl.int_range(pl.len()).over("category") + 1).cast(pl.String)
    frame = pl.DataFrame({"category": category, "place": place, "thing": thing, "material": material, "colour": colour})
    name = pl.format("{} {} {} for the {}, {}", "colour", "material", "thing", "place", number)
    return frame.select(name).to_series()


def _word(words: tuple[str, ...], n: int) -> str:
    again, place = divmod(n, len(words))
    return f"{words[place]} {again + 1}" if again else words[place]
