"""Compiled programs in a folder: later processes find them, and what is damaged does no harm."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import run_python
from tiers import cases, slow

from skuq.backend import _compile_cache as cache
from skuq.backend import keras
from skuq.training import cache_compiled_programs

OPS, CONTEXT = (f"tensorflow.python.{name}" for name in ("framework.ops", "eager.context"))
WORK = """
import joblib, numpy as np

def work(n_before):
    from skuq.backend import _compile_cache, keras, to_tensors
    from skuq.networks import GaussianHead
    from skuq.tables import TrainingData
    from skuq.training import Recipe, TrainingJob, train
    x = np.linspace(-1, 1, 20)[:, None]
    for _ in range(n_before):
        to_tensors(x)
    data = TrainingData.without_validation(x, x**2, np.ones(20))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    job = TrainingJob.of_model(model, GaussianHead(), Recipe(epochs=4), [0], jit=True)
    return str(_compile_cache._folder), train(job, data)[0].weights.tolist()
"""
IN_WORKERS = f"{WORK}\nprint(joblib.Parallel(2)(joblib.delayed(work)(n) for n in (3, 40)))"
HERE = f"{WORK}\nfrom skuq.training import *; cache_compiled_programs(); print([work(7)])"


@slow
@pytest.mark.smoke
def test_later_processes_load_programs_and_remove_what_is_damaged(tmp_path):
    def run(code):
        names = {cache.VARIABLE: "", "XDG_CACHE_HOME": str(tmp_path), "TF_NUM_INTRAOP_THREADS": "1"}
        done = run_python(code, **names)
        assert done.stderr == ""
        folders, weights = zip(*eval(done.stdout))
        (folder,) = map(Path, set(folders))
        return weights, {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}, folder

    (one, two), files, folder = run(IN_WORKERS)  # which keep programs by default, at the same time
    assert one == two and len(files) == 2 and folder.parent == tmp_path / "skuq"
    assert run(HERE)[:2] == ((one,), files)
    small, large = sorted(folder.iterdir(), key=lambda file: file.stat().st_size)
    small.write_bytes(small.read_bytes()[:1000])
    content = bytearray(large.read_bytes())
    at = content.find(b"\x7fELF") + 0x200  # in the code of the machine
    content[at : at + 0x200] = bytes(0x200)
    large.write_bytes(content)
    weights, mended, _ = run(HERE)
    assert weights == (one,) and mended.keys() == files.keys()
    assert all(mended[name] > files[name] for name in files)


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in (cache.VARIABLE, "TF_XLA_FLAGS", "XLA_FLAGS", "TF_NUM_INTRAOP_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "_folder", None)
    return tmp_path / "skuq"


def write(folder, name, age, content=b"program", is_whole=True):
    path = folder / name
    path.write_bytes(cache._checked(path, content) if is_whole else content)
    os.utime(path, (1e9 - age, 1e9 - age))
    return path


def test_folder_is_the_users_alone_and_bounded(home, monkeypatch):
    folder = cache._make_folder("1", "2.0", None)
    assert {part.stat().st_mode & 0o777 for part in (home, folder)} == {0o700}
    new, old = write(folder, "skuq__new.pb", 1), write(folder, "skuq__old.pb", 3)
    unfinished = write(folder, "skuq__unfinished.pb.tmp", 2, is_whole=False)
    (other := home / "skuq-other").mkdir()
    oldest, mine = write(other, "skuq__oldest.pb", 4), write(home, "mine.pb", 9, b"", False)
    for name, content in (("skuq__cut.pb", b"pro"), ("skuq__copy.pb", new.read_bytes())):
        write(folder, name, 0, content, is_whole=False)
    cache._make_folder("1", "2.0", None)
    left = {new, old, oldest, unfinished}
    assert set(home.glob("*/*")) == left and mine.exists()
    monkeypatch.setattr(cache, "_MAX_BYTES", 2.5 * new.stat().st_size)
    cache._make_folder("1", "2.0", None)
    assert set(home.glob("*/*")) == {new, unfinished, old}
    refusals = ("_MAX_BYTES", 1e18), ("os.getuid", lambda: -1), ("os.access", lambda *a: False)
    for name, value in refusals:  # full, another's, read-only
        with monkeypatch.context() as patch, pytest.raises(OSError):
            patch.setattr(f"skuq.backend._compile_cache.{name}", value)
            cache._make_folder("1", "2.0", None)
    with pytest.raises(OSError):
        cache._make_folder(str(mine / "below a file"), "2.0", None)


def test_folder_is_of_one_version_processor_and_setting(home, monkeypatch):
    def found(version="2.0", n_threads=None):
        return cache._make_folder("1", version, n_threads).name

    names = [found(), found("2.1"), found(n_threads=77)]
    for name in ("XLA_FLAGS", "TF_XLA_FLAGS"):
        monkeypatch.setenv(name, "--xla_flag=1")
        names.append(found())
    for text in ("flags : avx\ncpu MHz : 1", "flags : avx\ncpu MHz : 2", "flags : sse\n", "none"):
        monkeypatch.setattr(Path, "read_text", lambda path, text=text: text)
        names.append(found())
    assert names.pop(6) == names[5]  # the frequency changes all the time
    assert len(set(names)) == len(names) == 8


class Flags:
    """TensorFlow as `set_flags` sees it: which flags it reads, and whether it has been used."""

    __version__ = "2.0"

    def __init__(self, monkeypatch, is_used=False):
        self.config, self.set, self.read = self, [], None
        context = SimpleNamespace(_intra_op_parallelism_threads=None, _physical_devices=None)
        context._context_handle = is_used
        monkeypatch.setitem(sys.modules, CONTEXT, SimpleNamespace(context=lambda: context))
        monkeypatch.setattr(os, "putenv", lambda name, value: self.set.append(value))

    def list_physical_devices(self):
        self.read = self.set[-1]


@cases(
    ("asked", "given", "is_on"),
    ("1", "", True),
    ("mine", "--tf_xla_auto_jit=2", True),
    ("1", "--tf_xla_persistent_cache_directory=mine", False),
    ("1", "file of flags", False),
    ("0", "", False),
    ("", "", False),  # this process is not a worker
)
def test_flags_of_the_user_stay(home, monkeypatch, tmp_path, asked, given, is_on):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TF_XLA_FLAGS", given)
    monkeypatch.setenv(cache.VARIABLE, asked)
    flags = Flags(monkeypatch)
    cache.set_flags(flags, is_own=True)
    assert os.environ["TF_XLA_FLAGS"] == given and (cache._folder is not None) == is_on
    if is_on:
        assert cache._folder.parent == (home if asked == "1" else tmp_path / "mine")
        assert flags.read.startswith(given) and f"directory='{cache._folder}'" in flags.read
        assert flags.set[-1] == given


def test_a_cache_that_comes_too_late_warns_and_one_of_no_use_does_not(home, monkeypatch):
    with pytest.warns(match="ask for it before TensorFlow is first used"):
        assert keras and cache_compiled_programs("~/mine") is None  # it is loaded
    assert os.environ[cache.VARIABLE] == os.path.expanduser("~/mine")
    with pytest.warns(match="ask for it before TensorFlow is first used"):
        cache.set_flags(Flags(monkeypatch, is_used=True), is_own=True)
    home.mkdir()
    home.chmod(0o777)  # others could put programs there
    monkeypatch.setenv(cache.VARIABLE, "1")
    cache.set_flags(Flags(monkeypatch), is_own=True)
    assert cache._folder is None


def test_names_depend_on_the_key_and_a_program_that_fails_is_made_without_files(home, monkeypatch):
    folder = cache._make_folder("1", "2.0", None)
    before = write(folder, "skuq__before.pb", 0)
    monkeypatch.setattr(cache, "_folder", folder)
    monkeypatch.setattr(cache, "_n_traced", {})
    operations = SimpleNamespace(uid=lambda: 5)
    monkeypatch.setitem(sys.modules, OPS, operations)
    fails = [False, False, False, True, False]

    def make():
        def program(x):
            if fails.pop(0):
                raise OSError
            (folder / f"skuq__{numbers}.pb").write_bytes(b"program")

        numbers = operations.uid(), operations.uid()
        program.numbers = numbers
        return SimpleNamespace(get_concrete_function=lambda x: program)

    def numbers(key):
        return cache.keep_program(make, [1], key).numbers

    first, second = numbers("a"), numbers("a")
    assert len({*first, *second, *numbers("b")}) == 6 and before.exists()
    cache._n_traced.clear()  # as in another process
    assert operations.uid() == 5 and numbers("a") == second != first  # the first call fails
    (path,) = folder.iterdir()
    assert path.read_bytes() == cache._checked(path, b"program")
