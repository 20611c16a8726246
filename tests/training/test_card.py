"""The model card of a training."""

import pytest

from phiseg.data.store import Dataset
from phiseg.training.card import model_card


@pytest.mark.parametrize(
    ("annotator", "number", "stated"),
    [
        ("random", 1, "one random annotator per image and step"),
        ("random", 3, "3 random annotators per image and step"),
        ("random", 9, "4 random annotators per image and step"),
        (2, 1, "annotator 2 only"),
    ],
)
def test_model_card_states_the_annotations_of_a_step(make_recipe, lesions, annotator, number, stated):
    recipe = make_recipe(annotator=annotator)
    settings = recipe.train.model_copy(update={"annotations_per_image": number})
    card = model_card(recipe.model_copy(update={"train": settings}), Dataset.open(lesions), 1, {})
    assert f"| annotations | {stated} |" in card
