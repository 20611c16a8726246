"""Checks before sampling: model and dataset must match."""

import pytest

from helpers.small_volumes import make_volume, write_volumes
from phiseg.core.errors import ModelError
from phiseg.data.intensity import Intensity
from phiseg.data.store import Dataset
from phiseg.data.writer import Case, write_dataset
from phiseg.inference.sampling import check_fits, sample_cases
from phiseg.models import load_model
from phiseg.models.phiseg import PHiSegConfig
from phiseg.models.registry import build_model


@pytest.fixture
def prepared_otherwise(lesions, tmp_path):
    """Return a function that writes the lesions with something else in the manifest."""
    source = Dataset.open(lesions)

    def write(**changes):
        options = {"classes": source.info.classes, "intensity": source.info.intensity} | changes
        return write_dataset(
            tmp_path / "otherwise",
            name="otherwise",
            num_annotators=4,
            image_shape=source.images.shape[1:],
            image_dtype=source.images.dtype,
            cases=[
                Case(str(row), str(row), source.images[row], source.labels[row], source.valid[row])
                for row in range(5)
            ],
            **options,
        )

    return write


def test_matching_dataset_is_accepted(trained, prepared_otherwise):
    check_fits(load_model(trained()), prepared_otherwise())


@pytest.mark.parametrize(
    ("changes", "learned", "found"),
    [
        ({"intensity": Intensity(kind="window", low=0, high=2)}, "high=1.0", "high=2.0"),
        ({"intensity": Intensity(kind="zscore")}, "kind='window'", "kind='zscore'"),
    ],
)
def test_images_of_another_meaning_are_refused(changes, learned, found, trained, prepared_otherwise):
    model, dataset = load_model(trained()), prepared_otherwise(**changes)
    with pytest.raises(ModelError) as error:
        sample_cases(model, dataset, [0], num_samples=2, seed=0)
    before, after = str(error.value).split(str(dataset.path))
    assert learned in before
    assert found in after
    model.preprocessing = {}  # of a model that says nothing
    check_fits(model, dataset)


def test_model_of_images_refuses_volumes_and_the_reverse(trained, lesions, tmp_path):
    volumes = write_volumes(tmp_path / "volumes", image_shape=(1, 5, 8), cases=map(one_channel, range(5)))
    with pytest.raises(ModelError, match=r"the model has images as input, but .*volumes has volumes"):
        sample_cases(load_model(trained()), volumes, [0], num_samples=2, seed=0)
    model = build_model(PHiSegConfig(dims=3, channels=(4, 4), num_levels=2, blocks_per_level=1))
    with pytest.raises(ModelError, match=r"the model has volumes as input, but .*lesions has images"):
        check_fits(model, Dataset.open(lesions))


def one_channel(index):
    return make_volume(index, image=make_volume(index).image[:1])
