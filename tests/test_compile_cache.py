"""Compiled programs in a folder: later processes find them, and what is damaged does no harm."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from processes import run_python
from tiers import cases, slow

from skuq.backend import _compile_cache as cache
from skuq.backend import compile_program, ops
from skuq.training import cache_compiled_programs

WORK = """
import joblib, numpy as np, os, sys

def work(n_before):
    from skuq import backend, networks, tables, training
    x = np.linspace(-1, 1, 20)[:, None]
    list(map(backend.to_tensors, [x] * n_before))
    data = tables.TrainingData.without_validation(x, x**2, np.ones(20))
    parts = backend.keras.Input((1,)), backend.keras.layers.Dense(2)
    given = backend.keras.Sequential(parts), networks.GaussianHead(), training.Recipe(epochs=4), [0]
    member, = training.train(training.TrainingJob.of_model(*given, jit=True), data)
    return str(backend._compile_cache._folder), member.weights.tolist()
"""
IN_WORKERS = f"{WORK}\nprint(joblib.Parallel(2)(joblib.delayed(work)(n) for n in (3, 40)))"
HERE = f"""{WORK}
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"
import keras; print("loaded", file=sys.stderr, flush=True)
from skuq.training import *; cache_compiled_programs(); print([work(7)])
"""


@slow
@pytest.mark.smoke
def test_later_processes_load_programs_and_remove_what_is_damaged(tmp_path):
    names = {cache.VARIABLE: "", "XDG_CACHE_HOME": str(tmp_path), "TF_NUM_INTRAOP_THREADS": "1"}

    def run(code):
        done = run_python(code, **names)
        (folder, *_), weights = zip(*eval(done.stdout))
        assert not done.stderr.rpartition("loaded\n")[2]
        assert Path(folder).parent == tmp_path / "skuq"
        return weights, {file: file.stat().st_mtime_ns for file in Path(folder).iterdir()}

    (one, two), files = run(IN_WORKERS)  # which keep programs by default, at the same time
    assert one == two and len(files) == 2 and run(HERE) == ((one,), files)
    cut, hurt = sorted(files, key=lambda file: file.stat().st_size)
    cut.write_bytes(cut.read_bytes()[:1000])
    head, elf, code = hurt.read_bytes().partition(b"\x7fELF")
    hurt.write_bytes(head + elf + code[:0x200] + bytes(0x200) + code[0x400:])  # what is run
    weights, mended = run(HERE)
    assert weights == (one,) and mended.keys() == files.keys()
    assert all(mended[file] > files[file] for file in files)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in (cache.VARIABLE, "TF_XLA_FLAGS", "XLA_FLAGS", "TF_NUM_INTRAOP_THREADS"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "_folder", None)
    monkeypatch.setattr(cache, "_n_traced", {})
    return make()


def make(version="2.0", n_threads=None, asked="1"):
    return cache._make_folder(asked, version, n_threads)


def write(path, age, content=b"program", is_whole=True):
    path.write_bytes(cache._checked(path, content) if is_whole else content)
    os.utime(path, (1e9 - age, 1e9 - age))
    return path


def test_folder_is_the_users_alone_bounded_and_of_one_version_and_setting(folder, monkeypatch):
    home, other = folder.parent, make("2.1")
    assert {part.stat().st_mode & 0o777 for part in (home, folder)} == {0o700}
    new, old = write(folder / "skuq__new.pb", 1), write(folder / "skuq__old.pb", 3)
    unfinished = write(folder / "skuq__unfinished.pb.tmp", 2, is_whole=False)
    oldest = write(other / "skuq__oldest.pb", 4)
    mine = write(home / "mine.pb", 9, b"", is_whole=False)
    for name, content in (("cut", b"pro"), ("copy", new.read_bytes())):
        write(folder / f"skuq__{name}.pb", 0, content, is_whole=False)
    make()
    assert set(home.glob("*/*")) == {new, old, oldest, unfinished} and mine.exists()
    monkeypatch.setattr(cache, "_MAX_BYTES", 2.5 * new.stat().st_size)
    names = [make(), other, make(n_threads=77)]
    assert set(home.glob("*/*")) == {new, unfinished, old}
    refusals = ("_MAX_BYTES", 1e18), ("os.getuid", lambda: -1), ("os.access", lambda *a: False)
    for name, value in refusals:  # full, another's, read-only
        with monkeypatch.context() as patch, pytest.raises(OSError):
            patch.setattr(f"skuq.backend._compile_cache.{name}", value)
            make()
    with pytest.raises(OSError):
        make(asked=str(mine / "below a file"))
    for name in ("XLA_FLAGS", "TF_XLA_FLAGS"):
        monkeypatch.setenv(name, "--xla_flag=1")
        names.append(make())
    for text in ("flags : avx\ncpu MHz : 1", "flags : avx\ncpu MHz : 2", "flags : sse\n", "none"):
        monkeypatch.setattr(Path, "read_text", lambda path, text=text: text)
        names.append(make())
    assert names.pop(6) == names[5]  # the frequency changes all the time
    assert names[0] == folder and len(set(names)) == len(names) == 8


def tensorflow(monkeypatch, is_used=False):
    """Return TensorFlow as `set_flags` sees it, and a list that gets the flags as they are set."""
    used = Mock(_context_handle=is_used, _physical_devices=0, _intra_op_parallelism_threads=0)
    context, flags = SimpleNamespace(context=lambda: used), []
    monkeypatch.setitem(sys.modules, "tensorflow.python.eager.context", context)
    monkeypatch.setattr(os, "putenv", lambda name, value: flags.append(value))
    config = SimpleNamespace(list_physical_devices=lambda: flags.append("are read"))
    return SimpleNamespace(__version__="2.0", config=config), flags


@cases(
    ("asked", "given", "is_on"),
    ("1", "--tf_xla_auto_jit=2", True),
    ("1", "--tf_xla_persistent_cache_directory=mine", False),
    ("1", "file of flags", False),
    ("0", "", False),
    ("", "", False),  # this process is not a worker
)
def test_flags_of_the_user_stay(folder, monkeypatch, asked, given, is_on):
    monkeypatch.setenv("TF_XLA_FLAGS", given)
    monkeypatch.setenv(cache.VARIABLE, asked)
    fake, flags = tensorflow(monkeypatch)
    cache.set_flags(fake, is_own=True)
    assert os.environ["TF_XLA_FLAGS"] == given and (cache._folder is not None) == is_on
    if is_on:
        new, *then = flags
        assert new.startswith(given) and f"directory='{cache._folder}'" in new
        assert then == ["are read", given] and cache._folder.parent == folder.parent


def test_a_cache_that_comes_too_late_warns_and_one_of_no_use_does_not(folder, monkeypatch):
    message = "ask for it before TensorFlow is first used"
    with pytest.warns(match=message):
        assert compile_program and cache_compiled_programs("~/mine") is None  # it is loaded
    assert os.environ[cache.VARIABLE] == os.path.expanduser("~/mine")
    monkeypatch.setenv(cache.VARIABLE, "1")
    monkeypatch.setattr("skuq.backend._keras._is_late", True)
    with pytest.warns(match=message) as warned:
        compile_program(lambda x: x, [ops.ones(1)], jit=False)
    assert warned[0].filename == __file__
    assert cache.set_flags(tensorflow(monkeypatch, is_used=True)[0], is_own=True)
    folder.parent.chmod(0o777)  # others could put programs there
    assert not cache.set_flags(tensorflow(monkeypatch)[0], is_own=True)
    assert cache._folder is None


def test_names_are_those_of_the_key_and_what_fails_is_made_without_files(folder, monkeypatch):
    before, fails = write(folder / "skuq__before.pb", 0), [False, True, False, False, False]
    monkeypatch.setattr(cache, "_folder", folder)
    operations = SimpleNamespace(uid=lambda: 5, get_default_graph=lambda: operations.uid())
    monkeypatch.setitem(sys.modules, "tensorflow.python.framework.ops", operations)

    def trace(x):
        def program(x):
            if fails.pop():
                raise OSError
            (folder / f"skuq__{program.numbers}.pb").write_bytes(b"program")

        program.numbers = operations.uid(), operations.uid()
        return program

    def numbers(key):
        function = SimpleNamespace(get_concrete_function=trace)
        return cache.keep_program(lambda: function, [1], key).numbers

    first, second = numbers("a"), numbers("a")
    assert len({*first, *second, *numbers("b")}) == 6 and before.exists()
    cache._n_traced.clear()  # as in another process
    assert operations.uid() == 5 and numbers("a") == second  # the first call of `first` fails
    (path,) = folder.iterdir()
    assert path.read_bytes() == cache._checked(path, b"program")
