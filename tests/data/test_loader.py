"""Training batches depend only on the seed and the step."""

import threading
from collections import Counter

import numpy as np
import pytest
import torch

from phiseg.core.errors import ConfigError, DataError
from phiseg.data.augment import AugmentConfig
from phiseg.data.intensity import Intensity
from phiseg.data.loader import TrainingStream, prefetch
from phiseg.data.writer import Case, write_dataset

NUM_CASES, NUM_ANNOTATORS, SIZE = 23, 3, 8
OFF = AugmentConfig(enabled=False)
ON = AugmentConfig(flip_horizontal=True, quarter_turns=True, contrast=0.3, brightness=0.2)


def make_case(row):
    """Annotator a draws the binary digits of 4 * row + a; annotator 1 is missing in every third case."""
    digits = [(4 * row + annotator) >> np.arange(SIZE) & 1 for annotator in range(NUM_ANNOTATORS)]
    return Case(
        case=f"case-{row}",
        patient=f"patient-{row}",
        image=np.random.default_rng(row).standard_normal((1, SIZE, SIZE)).astype(np.float32),
        labels=np.repeat(np.array(digits)[:, None], SIZE, axis=1),
        valid=np.array([True, row % 3 != 0, row != 5]),
    )


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_dataset(
        tmp_path_factory.mktemp("loader") / "data",
        name="digits",
        classes=("zero", "one"),
        num_annotators=NUM_ANNOTATORS,
        image_shape=(1, SIZE, SIZE),
        image_dtype=np.float32,
        intensity=Intensity(kind="zscore"),
        cases=map(make_case, range(NUM_CASES)),
        splits={"train": [f"patient-{row}" for row in range(NUM_CASES - 3)], "val": ["patient-21", "patient-22"]},
    )


def make_stream(dataset, **changes):
    return TrainingStream(dataset, **{"batch_size": 6, "seed": 0, "augment": OFF, **changes})


def read(labels):
    """Return (row, annotator) that the digits of an annotation say."""
    number = int((labels[0].numpy() << np.arange(SIZE)).sum())
    return number // 4, number % 4


def assert_same(first, second):
    assert torch.equal(first.image, second.image)
    assert torch.equal(first.labels, second.labels)
    assert first.rows.tolist() == second.rows.tolist()


def test_batch_has_one_annotation_per_image(dataset):
    batch = make_stream(dataset).batch(0)
    assert batch.image.shape == (6, 1, SIZE, SIZE)
    assert batch.image.dtype == torch.float32
    assert batch.labels.shape == (6, SIZE, SIZE)
    assert batch.labels.dtype == torch.int64
    for image, labels, row in zip(batch.image, batch.labels, batch.rows, strict=True):
        np.testing.assert_array_equal(image, dataset.images[row])
        assert read(labels)[0] == row


@pytest.mark.parametrize("augment", [OFF, ON])
def test_batch_depends_only_on_seed_and_step(dataset, augment):
    stream = make_stream(dataset, augment=augment)
    forwards = [stream.batch(step) for step in range(12)]
    fresh = make_stream(dataset, augment=augment)
    for step in reversed(range(12)):
        assert_same(fresh.batch(step), forwards[step])
    other = make_stream(dataset, augment=augment, seed=1)
    assert any(other.batch(step).rows.tolist() != forwards[step].rows.tolist() for step in range(3))


def test_epoch_contains_every_case_once(dataset):
    stream = make_stream(dataset)  # 20 cases in batches of 6: epochs end inside a batch
    rows = np.concatenate([stream.batch(step).rows for step in range(30)])
    epochs = rows.reshape(-1, 20)
    for epoch in epochs:
        assert sorted(epoch) == list(range(20))
    assert len({tuple(epoch) for epoch in epochs}) == len(epochs)


def test_batch_may_be_larger_than_the_split(dataset):
    rows = make_stream(dataset, batch_size=50).batch(0).rows
    assert set(Counter(rows.tolist()).values()) == {2, 3}


@pytest.mark.parametrize("augment", [OFF, ON])
@pytest.mark.parametrize("world_size", [2, 3])
def test_batch_is_divided_among_processes(dataset, augment, world_size):
    whole = make_stream(dataset, augment=augment)
    ranks = [make_stream(dataset, augment=augment, rank=rank, world_size=world_size) for rank in range(world_size)]
    for step in range(8):
        parts = [stream.batch(step) for stream in ranks]
        expected = whole.batch(step)
        assert torch.equal(torch.cat([part.image for part in parts]), expected.image)
        assert torch.equal(torch.cat([part.labels for part in parts]), expected.labels)
        assert np.concatenate([part.rows for part in parts]).tolist() == expected.rows.tolist()


def test_indivisible_batch_size_is_rejected(dataset):
    with pytest.raises(ConfigError, match="multiple of 4"):
        make_stream(dataset, world_size=4)
    with pytest.raises(ConfigError, match="batch_size 0"):
        make_stream(dataset, batch_size=0)


def test_annotators_are_drawn_uniformly_from_valid_ones(dataset):
    stream = make_stream(dataset, batch_size=20)
    seen = Counter(read(labels) for step in range(300) for labels in stream.batch(step).labels)
    for row in range(20):
        counts = [seen[row, annotator] for annotator in range(NUM_ANNOTATORS)]
        valid = dataset.valid[row]
        assert [count > 0 for count in counts] == valid.tolist()
        expected = 300 / valid.sum()
        assert all(abs(count - expected) < 5 * np.sqrt(expected) for count in np.array(counts)[valid])


@pytest.mark.parametrize("number", [2, 3, 5])
def test_several_annotations_per_image_are_of_different_annotators(dataset, number):
    stream = make_stream(dataset, batch_size=20, annotations_per_image=number)
    seen = Counter()
    for step in range(100):
        batch = stream.batch(step)
        assert batch.labels.shape == (20, number, SIZE, SIZE)
        for row, annotations in zip(batch.rows.tolist(), batch.labels, strict=True):
            found = Counter(annotator for _, annotator in map(read, annotations))
            assert {read(labels)[0] for labels in annotations} == {row}
            valid = np.flatnonzero(dataset.valid[row]).tolist()
            assert set(found) <= set(valid)
            assert len(found) == min(number, len(valid))
            assert max(found.values()) - min(found.values()) <= 1  # repeated as evenly as possible
            seen.update((row, annotator) for annotator in found.elements())
    for row in range(20):
        counts = np.array([seen[row, annotator] for annotator in np.flatnonzero(dataset.valid[row])])
        assert np.abs(counts - counts.mean()).max() < 5 * np.sqrt(counts.mean())


def test_several_annotations_are_augmented_like_their_image(dataset):
    """Each annotation of a set is warped as it would be alone."""
    stream = make_stream(dataset, augment=ON, annotations_per_image=3)
    plain = make_stream(dataset, annotations_per_image=3)
    for step in range(5):
        batch, source = stream.batch(step), plain.batch(step)
        for place in range(3):
            alone = make_stream(dataset, augment=ON)
            drawn = source.labels[:, place]
            annotators = np.array([read(labels)[1] for labels in drawn])
            alone._draw_annotators = lambda step, rows, found=annotators: found
            expected = alone.batch(step)
            assert torch.equal(batch.image, expected.image)
            assert torch.equal(batch.labels[:, place], expected.labels)


def test_single_annotator_gives_one_annotation_per_image(dataset):
    batch = make_stream(dataset, annotator=0, annotations_per_image=3).batch(0)
    assert batch.labels.shape == (6, SIZE, SIZE)


def test_annotators_change_between_epochs(dataset):
    stream = make_stream(dataset, batch_size=20)
    first, second = (sorted(map(read, stream.batch(step).labels)) for step in (0, 1))
    assert first != second


def test_single_annotator_uses_only_annotated_cases(dataset):
    stream = make_stream(dataset, annotator=1)
    assert stream.rows.tolist() == [row for row in range(20) if row % 3]
    for step in range(10):
        batch = stream.batch(step)
        assert [read(labels) for labels in batch.labels] == [(row, 1) for row in batch.rows]


def test_unknown_annotator_is_rejected(dataset):
    for annotator in (-1, 3):
        with pytest.raises(ConfigError, match="use 0 to 2"):
            make_stream(dataset, annotator=annotator)


def test_annotator_without_cases_is_rejected(dataset):
    dataset.splits["sixth"] = ["patient-5"]
    with pytest.raises(DataError, match="annotator 2 has no case in split 'sixth'"):
        make_stream(dataset, split="sixth", annotator=2)


def test_unknown_split_is_rejected(dataset):
    with pytest.raises(DataError, match="did you mean 'train'"):
        make_stream(dataset, split="trian")


def test_augmentation_changes_image_and_labels(dataset):
    plain, augmented = make_stream(dataset).batch(3), make_stream(dataset, augment=ON).batch(3)
    assert plain.rows.tolist() == augmented.rows.tolist()
    assert not torch.equal(plain.image, augmented.image)
    assert not torch.equal(plain.labels, augmented.labels)


def test_augmentations_differ_between_steps(dataset):
    dataset.splits["one"] = ["patient-7"]
    stream = make_stream(dataset, split="one", batch_size=1, augment=ON)  # the same case at every step
    first, *others = (stream.batch(step).image for step in range(6))
    assert not all(torch.equal(first, other) for other in others)


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_prefetch_yields_batches_in_order(dataset):
    stream = make_stream(dataset, augment=ON)
    ahead = list(prefetch(stream, 3, 11))
    assert len(ahead) == 8
    for step, batch in enumerate(ahead, start=3):
        assert_same(batch, stream.batch(step))
    assert prefetch_threads() == []
    assert list(prefetch(stream, 5, 5)) == []


class Recorder:
    """A stream that notes which steps were made, and breaks at one of them."""

    def __init__(self, broken=None):
        self.made = []
        self.broken = broken

    def batch(self, step, device="cpu"):
        if step == self.broken:
            raise DataError("case 'x' has NaN pixels")
        self.made.append(step)
        return step


def test_prefetch_depth_is_bounded():
    stream = Recorder()
    batches = prefetch(stream, 0, 100, depth=2)
    assert next(batches) == 0
    assert next(batches) == 1
    batches.close()
    assert len(stream.made) <= 4
    assert prefetch_threads() == []


def test_prefetch_raises_error_at_its_batch():
    batches = prefetch(Recorder(broken=3), 0, 100)
    assert [next(batches) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(DataError, match="NaN"):
        next(batches)
    assert prefetch_threads() == []


def test_prefetch_thread_ends_with_consumer():
    def consume():
        for batch in prefetch(Recorder(), 0, 100):
            if batch == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consume()
    assert prefetch_threads() == []
