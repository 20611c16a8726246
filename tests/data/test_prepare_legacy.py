"""`phiseg prepare legacy`: published files are read without executing code or following links."""

import io
import os
import pickle
import struct
import tracemalloc
from itertools import chain

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from phiseg.core.errors import DataError
from phiseg.data.prepare import legacy_pickle
from phiseg.data.prepare.fixed_size_source import FixedSizeOptions
from phiseg.data.prepare.legacy import CLASSES, prepare_legacy
from phiseg.data.store import Dataset


@pytest.fixture
def prepare(tmp_path):
    def run(path, **options):
        options = FixedSizeOptions(classes=CLASSES, **options)
        return prepare_legacy(path, tmp_path / "out", options, progress=False, overwrite=True)

    return run


# ---- PHiSeg's data_lidc.hdf5


def some_groups(seed=0):
    """Return groups as PHiSeg's script writes them: images shifted to [-0.5, 0.5], hashes for uids."""
    random = np.random.default_rng(seed)
    return {
        split: {
            "images": random.uniform(-0.5, 0.5, (rows, 8, 8)),
            "labels": random.integers(0, 2, (rows, 8, 8, 4)).astype(np.uint8),
            "uids": np.array([number * 1000 + row // 2 for row in range(rows)]) - 2**62,
        }
        for number, (split, rows) in enumerate({"train": 6, "val": 2, "test": 3}.items())
    }


@pytest.fixture
def hdf5(tmp_path):
    def write(groups, **options):
        path = tmp_path / "data_lidc.hdf5"
        with h5py.File(path, "w") as file:
            for split, arrays in groups.items():
                group = file.create_group(split)
                for key, values in arrays.items():
                    group.create_dataset(key, data=values, **options)
        return path

    return write


@pytest.mark.parametrize("options", [{}, {"chunks": True, "compression": "gzip"}])
def test_hdf5_groups_become_splits(prepare, hdf5, options):
    groups = some_groups()
    dataset = prepare(hdf5(groups, **options))
    for split, arrays in groups.items():
        rows = dataset.rows(split)
        np.testing.assert_array_equal(dataset.images[rows, 0], arrays["images"].astype(np.float32))
        np.testing.assert_array_equal(dataset.labels[rows], arrays["labels"].transpose(0, 3, 1, 2))
        assert [dataset.cases[row]["patient"] for row in rows] == [str(uid) for uid in arrays["uids"]]
    assert (dataset.info.intensity.low, dataset.info.intensity.high) == (-0.5, 0.5)
    np.testing.assert_allclose(dataset.image(0), dataset.images[0], atol=1e-7)  # the network sees what PHiSeg's saw


def test_hdf5_uids_may_be_text(prepare, hdf5):
    groups = some_groups()
    groups["train"]["uids"] = [f"1.2.{row}" for row in range(6)]
    groups["val"]["uids"] = np.array([b"1.3.1", b"1.3.2"])
    dataset = prepare(hdf5(groups))
    assert dataset.splits["train"] == [f"1.2.{row}" for row in range(6)]
    assert dataset.splits["val"] == ["1.3.1", "1.3.2"]


def test_hdf5_series_in_two_groups_is_rejected_without_resplit(prepare, hdf5):
    groups = some_groups()
    groups["test"]["uids"][1] = groups["train"]["uids"][0]
    path = hdf5(groups)
    leak = groups["train"]["uids"][0]
    with pytest.raises(DataError, match=rf"patient '{leak}' is in split 'train' and in 'test'.*--resplit"):
        prepare(path)
    dataset = prepare(path, resplit=True, fractions=(0.6, 0.2, 0.2))
    assert sum(leaked == str(leak) for part in dataset.splits.values() for leaked in part) == 1
    assert dataset.num_cases == 11


def drop(groups, *keys):
    for key in keys:
        del groups["train"][key]


BAD_GROUPS = {
    "no labels": (lambda g: drop(g, "labels"), "has no 'train/labels'"),
    "no uids": (lambda g: drop(g, "uids"), "has no 'train/uids'"),
    "no groups": (lambda g: g.clear(), "none of the groups train, val, test"),
    "other rows": (lambda g: g["val"].update(uids=np.arange(3)), r"'val' has images \(2, 8, 8\)"),
    "other size": (lambda g: g["val"].update(labels=np.zeros((2, 8, 9, 4))), r"labels \(2, 8, 9, 4\)"),
    "flat labels": (lambda g: g["val"].update(labels=np.zeros((2, 8, 8))), r"labels \(2, 8, 8\)"),
    "sizes that differ": (
        lambda g: g["val"].update(images=np.zeros((2, 9, 9)), labels=np.zeros((2, 9, 9, 4))),
        r"case 'val-00000' has an image \(1, 9, 9\)",
    ),
    "a number": (lambda g: g["val"].update(images=3.0), r"'val' has images \(\)"),
    "label 2": (lambda g: g["val"]["labels"].fill(2), "case 'val-00000': label 2 is not one of the classes"),
    "NaN": (lambda g: g["val"]["images"].fill(np.nan), "case 'val-00000': the image has NaN or infinite pixels"),
    "text for images": (lambda g: g["val"].update(images=np.full((2, 8, 8), b"a")), "must be numbers"),
    "fractions for uids": (lambda g: g["val"].update(uids=np.array([0.5, 1])), "must be text or integers"),
}


@pytest.mark.parametrize("name", BAD_GROUPS)
def test_invalid_hdf5_gives_one_line_error(prepare, hdf5, tmp_path, name):
    spoil, cause = BAD_GROUPS[name]
    groups = some_groups()
    spoil(groups)
    with pytest.raises(DataError, match=cause) as caught:
        prepare(hdf5(groups))
    assert "data_lidc.hdf5" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["external link", "soft link", "linked group", "external storage", "virtual"])
def test_hdf5_links_to_other_files_are_rejected(prepare, hdf5, tmp_path, kind):
    path = hdf5(some_groups())
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["images"] = np.zeros((6, 8, 8))
    with h5py.File(path, "r+") as file:
        if kind == "linked group":
            del file["train"]
            file["train"] = h5py.ExternalLink("secret.h5", "/")
        else:
            del file["train/images"]
        if kind == "external link":
            file["train/images"] = h5py.ExternalLink("secret.h5", "images")
        elif kind == "soft link":
            file["elsewhere"] = h5py.ExternalLink("secret.h5", "/")
            file["train/images"] = h5py.SoftLink("/elsewhere/images")
        elif kind == "external storage":
            storage = [(str(secret), 0, 6 * 64 * 8)]
            file["train"].create_dataset("images", (6, 8, 8), "f8", external=storage)
        elif kind == "virtual":
            layout = h5py.VirtualLayout((6, 8, 8), "f8")
            layout[:] = h5py.VirtualSource("secret.h5", "images", (6, 8, 8))
            file["train"].create_virtual_dataset("images", layout)
    with pytest.raises(DataError, match=r"is a link|stores its values in other files"):
        prepare(path)


def test_hdf5_array_with_too_few_bytes_is_rejected(prepare, hdf5):
    path = hdf5(some_groups())
    with h5py.File(path, "r+") as file:
        for key, shape in {"images": (10**9, 8, 8), "labels": (10**9, 8, 8, 4), "uids": (10**9,)}.items():
            del file["val"][key]
            file["val"].create_dataset(key, shape, "u1", chunks=True)
    with pytest.raises(DataError, match="far fewer bytes"):
        prepare(path)


def test_truncated_hdf5_gives_one_line_error(prepare, hdf5):
    path = hdf5(some_groups())
    data = path.read_bytes()
    for end in range(8, len(data) - 1, 997):
        path.write_bytes(data[:end])
        with pytest.raises(DataError, match="is damaged"):
            prepare(path)


# ---- Knegt's data_lidc.pickle


def some_crops(num_crops=6, size=8):
    random = np.random.default_rng(0)
    return {
        f"LIDC-{crop}_slice": {
            "image": random.random((size, size)),
            "masks": [random.integers(0, 2, (size, size)).astype(np.uint8) for _ in range(4)],
            "series_uid": f"1.2.{crop // 2}",
        }
        for crop in range(num_crops)
    }


@pytest.fixture
def pickled(tmp_path):
    def write(value, protocol=2, **options):
        path = tmp_path / "data_lidc.pickle"
        path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value, protocol, **options))
        return path

    return write


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("core", ["numpy.core", "numpy._core"])
def test_pickle_of_every_protocol_and_numpy_version_is_read(prepare, pickled, protocol, core):
    crops = some_crops()
    data = pickle.dumps(crops, protocol)
    if protocol < 4:  # older protocols spell the module without its length
        data = data.replace(b"numpy._core", core.encode())
    dataset = prepare(pickled(data))
    for row, (key, crop) in enumerate(crops.items()):
        assert dataset.cases[row] == {"case": key, "patient": crop["series_uid"]}
        np.testing.assert_array_equal(dataset.images[row, 0], crop["image"].astype(np.float32))
        np.testing.assert_array_equal(dataset.labels[row], crop["masks"])
    assert (dataset.info.intensity.low, dataset.info.intensity.high) == (0, 1)
    assert sorted(chain(*dataset.splits.values())) == ["1.2.0", "1.2.1", "1.2.2"]


def python_2_pickle():
    """Return what Python 2 wrote for one crop: text and bytes are the same thing."""

    def array(typecode, shape, data):
        return b"".join(
            [
                b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01",
                *(b"K" + bytes([length]) for length in shape),
                b"\x86cnumpy\ndtype\nU\x02" + typecode + b"K\x00K\x01\x87R(K\x03U\x01<NNN",
                b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89",
                b"T" + struct.pack("<i", len(data)) + data + b"tb",
            ]
        )

    image = np.linspace(0, 1, 16).astype("<f8")
    mask = np.arange(16, dtype=np.uint8) % 2
    masks = b"](" + array(b"u1", (4, 4), mask.tobytes()) * 3 + b"e"
    crop = (
        b"}(U\x05image" + array(b"f8", (4, 4), image.tobytes()) + b"U\x05masks" + masks + b"U\nseries_uidU\x031.2u"
    )
    return b"\x80\x02}U\x03keyq\x01" + crop + b"s.", image.reshape(4, 4), mask.reshape(4, 4)


def test_pickle_of_python_2_is_read(prepare, pickled):
    data, image, mask = python_2_pickle()
    dataset = prepare(pickled(data))
    np.testing.assert_array_equal(dataset.images[0, 0], image.astype(np.float32))
    np.testing.assert_array_equal(dataset.labels[0], [mask] * 3)
    assert dataset.cases == [{"case": "key", "patient": "1.2"}]


def test_pickle_with_too_many_readers_is_rejected_before_copying(prepare, pickled):
    plane = np.zeros((512, 512), np.uint8)
    crops = {"a": {"image": plane, "masks": [plane] * 60_000, "series_uid": "1.2"}}
    with pytest.raises(DataError, match="crop 'a' has 60000 masks, more than 64 readers"):
        prepare(pickled(crops))


def test_pickled_arrays_and_scalars_keep_type_order_and_value(pickled):
    values = {
        "fortran": np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)),
        "big": np.arange(3, dtype=">i2"),
        "bool": np.array([True, False]),
        "text": np.array(["ab", "c"]),
        "empty": np.zeros((0, 3)),
        "permuted": np.moveaxis(np.arange(24, dtype=np.int16).reshape(2, 3, 4), 2, 0),
    }
    for protocol in range(6):
        loaded = legacy_pickle.load(pickled(values | {"scalar": np.float32(0.5), "name": np.str_("x")}, protocol))
        for key, value in values.items():
            np.testing.assert_array_equal(loaded[key].values, value)
            assert loaded[key].values.dtype == value.dtype
        assert (loaded["scalar"], loaded["name"]) == (0.5, "x")


class Reduce:
    """Pickles as a call of whatever it is given."""

    def __init__(self, function, *arguments, state=None):
        self.call = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self):
        return self.call


def called(module, name, *arguments):
    """Return a pickle of protocol 4 that calls a function by its name, dots and all."""
    return (
        b"\x80\x04"
        + b"".join(_text(word) for word in (module, name))
        + b"\x93("
        + b"".join(_text(argument) for argument in arguments)
        + b"tR."
    )


def _text(word):
    return b"\x8c" + bytes([len(word)]) + word.encode()


def marker_script(marker):
    return f"open({str(marker)!r}, 'w').close()"


def malicious(marker):
    """Return pickles that make the file `marker` where they are run, or do something else that they may not."""
    import subprocess

    shell, script = f"touch {marker}", marker_script(marker)
    array = b"cnumpy._core.multiarray\n_reconstruct\n"
    kind = b"cnumpy\ndtype\n(X\x02\x00\x00\x00f8K\x00K\x01tR"
    return {
        "os.system": pickle.dumps(Reduce(os.system, shell)),
        "old os.system": pickle.dumps(Reduce(os.system, shell), 0),
        "subprocess": pickle.dumps(Reduce(subprocess.check_call, ["touch", str(marker)])),
        "inside a dict": pickle.dumps({"key": {"image": Reduce(os.system, shell)}}),
        "eval": pickle.dumps(Reduce(eval, f"__import__('os').system({shell!r})")),
        "exec": pickle.dumps(Reduce(exec, script)),
        "INST": b"(S'" + shell.encode() + b"'\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nS'" + shell.encode() + b"'\no.",
        "getattr": called("builtins", "getattr", "x", "y"),
        "import": called("builtins", "__import__", "os"),
        "dotted": called("numpy", "f2py.os.system", shell),
        "dotted in an allowed module": called("numpy._core.multiarray", "_reconstruct.__globals__", "x"),
        "dotted of the stand-in": called("numpy", "dtype.__class__", "x"),
        "numpy.load": called("numpy", "load", str(marker)),
        "numpy.memmap": called("numpy", "memmap", str(marker)),
        "numpy.fromfile": called("numpy", "fromfile", str(marker)),
        "numpy.f2py": called("numpy.f2py", "compile", "x"),
        "numpy testing": called("numpy.testing._private.utils", "runstring", script, "x"),
        "ndarray called": called("numpy", "ndarray", "x"),
        "NEWOBJ": b"\x80\x02cnumpy\nndarray\n(K\x05t\x81.",
        "extension": b"\x80\x02\x82\x01.",
        "persistent": b"\x80\x02Pname\n.",
        "codec": called("_codecs", "encode", "x", "zip_codec"),
        "codec lookup": called("_codecs", "lookup", "latin1"),
        "reconstruct of a class": b"\x80\x02" + array + b"cbuiltins\nobject\nK\x00\x85C\x01b\x87R.",
        "reconstruct of a size": b"\x80\x02" + array + b"cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85C\x01b\x87R.",
        "state of a function": b"\x80\x02" + array + b"N}X\x08\x00\x00\x00__code__Ns\x86b.",
        "state of a dict": b"\x80\x02}}X\x09\x00\x00\x00__class__Nsb.",
        "objects": pickle.dumps({"key": np.array([Reduce(os.system, shell)], dtype=object)}),
        "records": pickle.dumps(np.zeros(2, dtype=[("a", "i4"), ("b", "f8")])),
        "type with fields": b"\x80\x02" + kind + b"(K\x03X\x01\x00\x00\x00<N(tK\x01NNNtb.",
        "more shape than bytes": pickle.dumps(np.zeros(3), 2).replace(b"K\x03\x85", b"K\xff\x85"),
        "call of text": b"\x80\x02X\x01\x00\x00\x00a(tR.",
        "set": pickle.dumps({1, 2}),
        "class": pickle.dumps(Reduce),
        "no Unicode": pickle.dumps({"key": np.str_("abc")}, 4).replace(b"b\0\0\0", b"b\0\0\x80"),
        "array as a key": b"\x80\x02}" + array + b"cnumpy\nndarray\nK\x00\x85C\x01b\x87RNs.",
    }


@pytest.mark.parametrize("name", malicious("marker"))
def test_malicious_pickle_is_not_executed(prepare, pickled, tmp_path, name):
    marker = tmp_path / "was-run"
    path = pickled(malicious(marker)[name])
    if name in ("os.system", "eval", "exec", "INST", "OBJ"):  # the attack is real: an unguarded reader would run it
        with path.open("rb") as file:
            pickle.load(file)
        assert marker.exists()
        marker.unlink()
    with pytest.raises(DataError, match=r"is not a pickle of NumPy arrays|is not an HDF5 file"):
        prepare(path)
    with pytest.raises(DataError, match="is not a pickle of NumPy arrays"):
        legacy_pickle.load(path)
    assert not marker.exists()


def doubling(depth):
    """Return a pickle of nested pairs, (x, x) of (x, x) and so on, as the key of a dict: 2 ** depth to hash."""
    return b"\x80\x02})" + b"q\x00h\x00\x86" * depth + b"Ns."


def repeated_copies():
    """Return a pickle that asks for the same 100 kB of bytes 10,000 times over, 1 GB in all."""
    text = b"X" + struct.pack("<I", 100_000) + b"a" * 100_000 + b"q\x00"
    call = b"c_codecs\nencode\nq\x01"
    again = b"h\x01(h\x00X\x06\x00\x00\x00latin1tR"
    return b"\x80\x02" + text + b"0" + call + b"0](" + again * 10_000 + b"e."


BOMBS = {
    "nested pairs": doubling(200),
    "repeated copies": repeated_copies(),
    "long bytes": b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"abc.",
    "long text": b"\x80\x04\x8d" + struct.pack("<Q", 2**40) + b"abc.",
    "long bytearray": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"abc.",
    "long frame": b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"abc.",
    "long number": b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"abc.",
    "far memo": b"\x80\x02]r" + struct.pack("<I", 2**31 - 1) + b"(K\x00q\x00ej" + struct.pack("<I", 2**30) + b".",
}


@pytest.mark.parametrize("name", BOMBS)
def test_small_pickle_needs_little_memory(pickled, name):
    path = pickled(BOMBS[name])
    tracemalloc.start()
    with pytest.raises(DataError, match="is not a pickle of NumPy arrays"):
        legacy_pickle.load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6


BAD_CROPS = {
    "a list": ([1, 2], "does not contain a dict of crops"),
    "an empty dict": ({}, "has no annotated case"),
    "numbers": ({"a": 3}, "crop 'a' has no image"),
    "no uid": ({"a": {"image": np.zeros((4, 4)), "masks": []}}, "crop 'a' has no"),
    "no masks": ({"a": {"image": np.zeros((4, 4)), "masks": [], "series_uid": "1"}}, "not one array"),
    "text masks": ({"a": {"image": np.zeros((4, 4)), "masks": "abcd", "series_uid": "1"}}, "not one array"),
    "flat image": (
        {"a": {"image": np.zeros(4), "masks": [np.zeros((4, 4))], "series_uid": "1"}},
        "is not an array",
    ),
    "uid of arrays": (
        {"a": {"image": np.zeros((4, 4)), "masks": [np.zeros((4, 4))], "series_uid": []}},
        "is not text",
    ),
    "text pixels": (
        {"a": {"image": np.full((4, 4), "x"), "masks": [np.zeros((4, 4))], "series_uid": "1"}},
        "crop|case 'a': the pixels are <U1",
    ),
    "other size": (
        some_crops() | {"z": {"image": np.zeros((4, 4)), "masks": [np.zeros((4, 4))] * 4, "series_uid": "1"}},
        r"case 'z' has an image \(1, 4, 4\)",
    ),
    "other masks": (
        {"a": {"image": np.zeros((4, 4)), "masks": [np.zeros((5, 4))], "series_uid": "1"}},
        r"case 'a' has an image \(1, 4, 4\) with masks \(1, 5, 4\)",
    ),
}


@pytest.mark.parametrize("name", BAD_CROPS)
def test_invalid_pickle_gives_one_line_error(prepare, pickled, name):
    crops, cause = BAD_CROPS[name]
    with pytest.raises(DataError, match=cause) as caught:
        prepare(pickled(crops, 4))
    assert "data_lidc.pickle" in str(caught.value)
    assert "\n" not in str(caught.value)


WHOLE = pickle.dumps(some_crops(3, size=4), 2)


@given(
    damage=st.one_of(
        st.integers(1, len(WHOLE) - 1).map(lambda end: WHOLE[:end]),
        st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=6).map(
            lambda changes: bytes(dict(changes).get(place, byte) for place, byte in enumerate(WHOLE))
        ),
        st.binary(max_size=60).map(lambda tail: b"\x80\x04" + tail + b"."),
    )
)
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_pickle_gives_dataset_or_one_line_error(prepare, pickled, damage):
    complaint = ""
    try:
        prepare(pickled(damage))
    except DataError as error:
        complaint = str(error)
    assert "\n" not in complaint


# ---- Kohl's PNGs


@pytest.fixture
def crops_folder(tmp_path):
    """Return a function that writes Kohl's layout, and returns {(split, patient, name): (image, masks)}."""

    def write(patients, root=tmp_path / "lidc_crops", *, size=8, bits=8):
        random = np.random.default_rng(0)
        written = {}
        for split, patient in patients:
            for name in ("z-10.0_c0", "z-11.5_c1"):
                image = random.integers(0, 2**bits, (size, size)).astype(f"u{bits // 8}")
                masks = random.integers(0, 2, (4, size, size)).astype(np.uint8)
                for folder, stem, pixels in [
                    ("images", name, image),
                    *(("gt", f"{name}_l{reader}", mask * 255) for reader, mask in enumerate(masks)),
                ]:
                    path = root / split / folder / patient / f"{stem}.png"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(pixels).save(path)
                written[split, patient, name] = (image, masks)
        return root, written

    return write


PATIENTS = [("train", "LIDC-IDRI-0002"), ("train", "LIDC-IDRI-0003"), ("val", "LIDC-IDRI-0001"), ("test", "p4")]


@pytest.mark.parametrize("bits", [8, 16])
def test_png_folder_keeps_pixels_and_splits(prepare, crops_folder, bits, capfd):
    root, written = crops_folder(PATIENTS, bits=bits)
    dataset = prepare(root)
    assert dataset.splits == {
        "train": ["LIDC-IDRI-0002", "LIDC-IDRI-0003"],
        "val": ["LIDC-IDRI-0001"],
        "test": ["p4"],
    }
    assert dataset.num_cases == len(written) == 8
    for (_, patient, name), (image, masks) in written.items():
        row = [case["case"] for case in dataset.cases].index(f"{patient}/{name}")
        np.testing.assert_array_equal(dataset.images[row, 0], image)
        np.testing.assert_array_equal(dataset.labels[row], masks)
    assert dataset.images.dtype == f"u{bits // 8}"
    assert (dataset.info.intensity.high == 255) == (bits == 8)
    assert "skipped" not in capfd.readouterr().err


def test_png_folder_may_have_no_splits_or_one_folder_per_archive(prepare, crops_folder, tmp_path):
    root, written = crops_folder([("", "a"), ("", "b"), ("", "c")], tmp_path / "flat")
    assert prepare(root, fractions=(0.4, 0.3, 0.3)).num_cases == len(written)
    root, _ = crops_folder([("lidc_crops_train/train", "a"), ("lidc_crops_val/val", "b")], tmp_path / "archives")
    assert prepare(root).splits == {"train": ["a"], "val": ["b"]}


def test_broken_png_skips_case_and_missing_png_marks_reader(prepare, crops_folder, capfd):
    root, _ = crops_folder(PATIENTS)
    broken = root / "train" / "gt" / "LIDC-IDRI-0002" / "z-10.0_c0_l2.png"
    broken.write_bytes(broken.read_bytes()[:40])
    (root / "train" / "images" / "LIDC-IDRI-0003" / "z-10.0_c0.png").write_text("hello")
    (root / "val" / "gt" / "LIDC-IDRI-0001" / "z-11.5_c1_l3.png").unlink()
    dataset = prepare(root)
    names = [case["case"] for case in dataset.cases]
    assert dataset.num_cases == 6
    assert not {"LIDC-IDRI-0002/z-10.0_c0", "LIDC-IDRI-0003/z-10.0_c0"} & {*names}
    assert [*dataset.valid[names.index("LIDC-IDRI-0001/z-11.5_c1")]] == [True, True, True, False]
    told = capfd.readouterr().err
    assert str(broken) in told
    assert "skipped 2 of 8 crops" in told
    assert "1 masks have no file" in told


def test_png_bomb_is_skipped(prepare, crops_folder, capfd):
    root, _ = crops_folder(PATIENTS)
    path = root / "val" / "images" / "LIDC-IDRI-0001" / "z-10.0_c0.png"
    file = io.BytesIO()
    Image.new("1", (10_000, 10_000)).save(file, "PNG")
    path.write_bytes(file.getvalue())
    assert prepare(root).num_cases == 7
    assert (
        f"{path} cannot be read as a grey PNG (Image size (100000000 pixels) exceeds limit"
        in capfd.readouterr().err
    )


def test_png_patient_in_two_splits_is_rejected(prepare, crops_folder):
    root, _ = crops_folder([("train", "a"), ("test", "a")])
    with pytest.raises(DataError, match=r"patient 'a' is in split 'train' and in 'test'.*--resplit"):
        prepare(root)


def test_png_of_other_size_or_colour_is_named(prepare, crops_folder, capfd):
    root, _ = crops_folder(PATIENTS)
    Image.new("RGB", (8, 8)).save(root / "val" / "images" / "LIDC-IDRI-0001" / "z-10.0_c0.png")
    assert prepare(root).num_cases == 7
    assert "its mode is RGB, not grey" in capfd.readouterr().err
    crops_folder([("test", "big")], size=9)
    with pytest.raises(DataError, match=r"case 'big/z-10.0_c0' has an image \(1, 9, 9\)"):
        prepare(root)


# ---- LIDC-IDRI-slices


@pytest.fixture
def slices_folder(tmp_path):
    """Return the folder as it is downloaded, and {(patient, nodule, slice): (image, masks)}."""
    random = np.random.default_rng(0)
    root, written = tmp_path / "LIDC-IDRI-slices", {}
    for patient, nodule, count in (("LIDC-IDRI-0001", 0, 11), ("LIDC-IDRI-0001", 10, 1), ("LIDC-IDRI-0002", 2, 2)):
        for level in range(count):
            image = random.integers(0, 256, (8, 8)).astype(np.uint8)
            masks = random.integers(0, 2, (4, 8, 8)).astype(np.uint8)
            for folder, pixels in [("images", image), *((f"mask-{k}", 255 * mask) for k, mask in enumerate(masks))]:
                path = root / patient / f"nodule-{nodule}" / folder / f"slice-{level}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(path)
            written[patient, nodule, level] = (image, masks)
    return root, written


@pytest.mark.parametrize("place", ["the folder", "its parent"])
def test_lidc_idri_slices_are_in_order_of_nodules_and_slices(prepare, slices_folder, capfd, place):
    root, written = slices_folder
    dataset = prepare(root if place == "the folder" else root.parent, fractions=(0.5, 0.5, 0))
    found = [(case["patient"], int(case["nodule"]), int(case["slice"])) for case in dataset.cases]
    assert found == sorted(written), "slice 10 after slice 9"
    for row, key in enumerate(found):
        image, masks = written[key]
        np.testing.assert_array_equal(dataset.images[row, 0], image)
        np.testing.assert_array_equal(dataset.labels[row], masks)
    assert dataset.cases[11]["case"] == "LIDC-IDRI-0001-nodule-10-slice-0"
    assert dataset.valid.all()
    assert sorted(chain(*dataset.splits.values())) == ["LIDC-IDRI-0001", "LIDC-IDRI-0002"]
    assert dataset.info.source["kind"] == "LIDC-IDRI-slices"
    assert "cannot be converted to Hounsfield units" in capfd.readouterr().err


@pytest.mark.parametrize("folder", ["images", "mask-0", "mask-3"])
def test_lidc_idri_slices_with_missing_file_are_rejected(prepare, slices_folder, tmp_path, folder):
    root, _ = slices_folder
    path = root / "LIDC-IDRI-0001" / "nodule-0" / folder / "slice-4.png"
    path.unlink()
    with pytest.raises(DataError, match=r"does not exist \(1 files are missing\).*readers 0 to 3") as caught:
        prepare(root)
    assert str(path) in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_lidc_idri_slices_without_masks_are_rejected(prepare, slices_folder):
    root, _ = slices_folder
    for path in root.glob("*/nodule-*/mask-*/*.png"):
        path.unlink()
    with pytest.raises(DataError, match=r"slice-0\.png does not exist \(56 files are missing\)"):
        prepare(root)


def test_lidc_idri_slices_skip_mask_of_other_size(prepare, slices_folder, capfd):
    root, written = slices_folder
    path = root / "LIDC-IDRI-0002" / "nodule-2" / "mask-1" / "slice-1.png"
    Image.new("L", (9, 8)).save(path)
    assert prepare(root).num_cases == len(written) - 1
    told = capfd.readouterr().err
    assert f"{path} has shape (8, 9), but its image has (8, 8)" in told
    assert "skipped 1 of 14 crops" in told


# ---- what is what


@pytest.mark.parametrize("kind", ["hdf5", "pickle"])
def test_format_is_detected_by_content(prepare, hdf5, pickled, tmp_path, kind):
    path = hdf5(some_groups()) if kind == "hdf5" else pickled(some_crops())
    renamed = path.rename(tmp_path / "download.bin")
    assert prepare(renamed).info.source["kind"] == {"hdf5": "PHiSeg's HDF5", "pickle": "Knegt's pickle"}[kind]


def test_unknown_format_is_rejected(prepare, tmp_path):
    (tmp_path / "text").write_text("hello")
    (tmp_path / "nothing").write_text("")
    (tmp_path / "folder").mkdir()
    for name in ("text", "nothing"):
        with pytest.raises(DataError, match="is not an HDF5 file, a pickle or a folder"):
            prepare(tmp_path / name)
    with pytest.raises(DataError, match=r"no PNG files in a known layout; give a folder with images/PATIENT"):
        prepare(tmp_path / "folder")
    with pytest.raises(DataError, match="No such file"):
        prepare(tmp_path / "nowhere")


def test_command_prepares_dataset_and_prints_summary(cli, pickled, tmp_path):
    result = cli("prepare", "legacy", pickled(some_crops(10)), tmp_path / "out", "--size", 16, "--lidc")
    assert result.code == 0, result.err
    assert "10 cases of 5 patients" in result.out
    assert "16 x 16 pixels" in result.out
    info = Dataset.open(tmp_path / "out").info
    assert (info.modality, info.plane, info.centred_on) == ("CT", "axial", "nodule")
    assert info.classes == ("background", "nodule")


def test_content_of_a_file_is_not_guessed(cli, pickled, tmp_path):
    source = pickled(some_crops(10))
    assert cli("prepare", "legacy", source, tmp_path / "out").code == 0
    info = Dataset.open(tmp_path / "out").info
    assert (info.modality, info.plane, info.centred_on) == (None, None, None)
    assert info.classes == ("background", "class 1")
    words = ["--modality", "MR", "--classes", "background", "brain", "--overwrite"]
    assert cli("prepare", "legacy", source, tmp_path / "out", *words).code == 0
    info = Dataset.open(tmp_path / "out").info
    assert (info.modality, info.classes) == ("MR", ("background", "brain"))
    result = cli("prepare", "legacy", source, tmp_path / "out", *words, "--lidc")
    assert (result.code, "--lidc sets" in result.err) == (2, True)
