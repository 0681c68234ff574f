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
    jobs = [training.TrainingJob.of_model(*given, jit=jit) for jit in (True, False)]
    members = [training.train(job, data)[0] for job in jobs]
    assert not backend._keras.tf.io.gfile.glob("ram://*/*")  # no part of a graph went through XLA
    return str(backend._compile_cache._start.parent), members[0].weights.tolist()
"""
IN_WORKERS = f"{WORK}\nprint(joblib.Parallel(2)(joblib.delayed(work)(n) for n in (3, 40)))"
HERE = f"""{WORK}
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"
import keras; print("loaded", file=sys.stderr, flush=True)
from skuq.training import *; cache_compiled_programs(); print([work(7)])
"""
LIMITED = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, -1))\n{HERE}"


@slow
@pytest.mark.smoke
def test_later_processes_load_programs_and_mend_what_is_damaged(tmp_path):
    names = {cache.VARIABLE: "", "XDG_CACHE_HOME": str(tmp_path), "TF_NUM_INTRAOP_THREADS": "1"}

    def run(code):
        done = run_python(code, **names)
        (folder, *_), weights = zip(*eval(done.stdout))
        assert not done.stderr.rpartition("loaded\n")[2]
        assert Path(folder) == tmp_path / "skuq"
        return weights, {file: file.stat().st_mtime_ns for file in Path(folder).iterdir()}

    (one, two), files = run(IN_WORKERS)  # which keep programs by default, at the same time
    assert one == two and len(files) == 1 and run(HERE) == ((one,), files)
    (file,) = files
    head, elf, code = file.read_bytes().partition(b"\x7fELF")
    file.write_bytes(head + elf + code[:0x200] + bytes(0x200) + code[0x400:])  # what is run
    assert run(LIMITED)[0] == (one,) and file.stat().st_size == 1000
    assert run(HERE)[0] == (one,) and file.stat().st_size > 1000


@pytest.fixture
def start(tmp_path, monkeypatch):
    for name in (cache.VARIABLE, "TF_XLA_FLAGS", "XLA_FLAGS", "TF_NUM_INTRAOP_THREADS"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_start", None)
    monkeypatch.setattr(cache, "_n_traced", {})
    return make()


def make(version="2.0", n_threads=None, asked="1"):
    return cache._use_folder(asked, cache._setting(version, n_threads)) or cache._start


def test_folder_is_the_users_alone_bounded_and_of_one_version_and_setting(start, monkeypatch):
    home, above, other = start.parent, start.parent.parent, make("2.1")
    assert {part.stat().st_mode & 0o777 for part in (home, above)} == {0o700}
    parts = f"{start}-1", f"{other}-1", f"{start}-2", home / "mine"
    for age, path in enumerate(paths := [Path(f"{part}.pb") for part in parts]):
        path.write_bytes(b"program")
        os.utime(path, (1e9 - age, 1e9 - age))
    (gone := home / "skuq-gone.pb").symlink_to("nothing")  # another process has removed it
    assert make() == start and set(home.iterdir()) == {*paths, gone}
    monkeypatch.setattr(cache, "_MAX_BYTES", 20)
    names = [make(), other, make(n_threads=77)]
    assert set(home.iterdir()) == {*paths, gone} - {paths[2]}
    refusals = ("_MAX_BYTES", 1e18), ("os.getuid", lambda: -1), ("os.access", lambda *a: False)
    for name, value in refusals:  # full, another's, read-only
        with monkeypatch.context() as patch:
            patch.setattr(f"skuq.backend._compile_cache.{name}", value)
            assert "not kept in" in make()
    (link := above.parent / "link").symlink_to(home)
    for mode in (0o777, 0o1777):
        above.chmod(mode)  # without the bit, those who can write to it could move the folder
        assert (make(asked=str(link)) == start) == (mode == 0o1777)
    assert "not kept in" in make(asked=str(path / "below a file"))
    for name in ("XLA_FLAGS", "TF_XLA_FLAGS"):
        monkeypatch.setenv(name, "--xla_flag=1")
        names.append(make())
    for text in ("flags : avx\ncpu MHz : 1", "flags : avx\ncpu MHz : 2", "flags : sse\n", "none"):
        monkeypatch.setattr(Path, "read_text", lambda path, text=text: text)
        names.append(make())
    assert names.pop(6) == names[5]  # the frequency changes all the time
    assert names[0] == start and len(set(names)) == len(names) == 8


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
    ("Yes", "", True),
    ("1", "--tf_xla_persistent_cache_directory=mine", False),
    ("1", "file of flags", False),
    ("0", "", False),
    ("off", "", False),
    ("", "", False),  # this process is not a worker
)
def test_flags_of_the_user_stay(start, monkeypatch, asked, given, is_on):
    monkeypatch.setattr(cache, "_start", None)
    monkeypatch.setenv("TF_XLA_FLAGS", given)
    monkeypatch.setenv(cache.VARIABLE, asked)
    fake, flags = tensorflow(monkeypatch)
    assert not cache.set_flags(fake, is_own=True) and os.environ["TF_XLA_FLAGS"] == given
    assert cache._start == (start.with_name(cache._start.name) if is_on else None)
    if is_on:
        new, *then = flags
        assert new.startswith(given) and "=ram://skuq" in new and then == ["are read", given]


def test_a_folder_that_comes_too_late_or_is_of_no_use_warns(start, monkeypatch):
    assert compile_program and cache_compiled_programs(start.parent.parent / "it's") is None
    assert cache._start == start.parent.parent / "it's" / start.name  # from now on
    start.parent.chmod(0o777)  # others could put programs there
    with pytest.warns(match="not kept in .*others can write to it"):
        cache_compiled_programs()
    assert cache._start.parent.name == "it's"
    monkeypatch.setattr(cache, "current_process", type("LokyProcess", (), {}))
    for asked in ("", "1"):  # a worker's default says nothing
        monkeypatch.setenv(cache.VARIABLE, asked)
        problem = cache.set_flags(tensorflow(monkeypatch)[0], is_own=True)
        assert ("not kept in" in problem) == bool(asked) == bool(problem)
    monkeypatch.setattr(cache, "_start", None)
    late = cache.set_flags(tensorflow(monkeypatch, is_used=True)[0], is_own=True)
    monkeypatch.setattr("skuq.backend._keras._cache_problem", late)
    with pytest.warns(match="ask for it before TensorFlow is first used") as warned:
        cache_compiled_programs("~/mine")
        compile_program(lambda x: x, [ops.ones(1)], jit=False)
    assert [warning.filename for warning in warned] == [__file__] * 2
    assert os.environ[cache.VARIABLE] == os.path.expanduser("~/mine")


def test_names_are_those_of_the_key_and_no_file_stops_a_program(start, monkeypatch):
    files, found, fails = sys.modules["tensorflow"].io.gfile, [], [False]
    operations = SimpleNamespace(uid=lambda: 5, get_default_graph=lambda: operations.uid())
    monkeypatch.setitem(sys.modules, "tensorflow.python.framework.ops", operations)

    def trace(x):
        def program(x):
            found.append(files.exists(name))
            if fails[-1] and fails.pop():
                raise ValueError
            files.GFile(name, "wb").write(b"program")

        program.numbers = operations.uid(), operations.uid()
        name = f"ram://skuq/{program.numbers}.pb"
        return program

    def numbers(key, is_new_process=True):
        if is_new_process:
            cache._n_traced.clear()
        function = SimpleNamespace(get_concrete_function=trace)
        return cache.keep_program(lambda: function, [1], key, monkeypatch.context).numbers

    first, second = numbers("a"), numbers("a", False)
    assert len({*first, *second, *numbers("b")}) == 6 and operations.uid() == 5
    path, other = (Path(f"{start}-{cache._digest('a')}-{number}.pb") for number in (1, 2))
    assert numbers("a") == first and found == [False, False, False, True]
    path.write_bytes((whole := path.read_bytes())[:-1])
    assert numbers("a") == first and not found[-1] and path.read_bytes() == whole
    fails.append(True)  # although its file is whole
    assert numbers("a") == second and found[-2:] == [True, True] and not path.exists()
    fails.append(True)  # which has nothing to do with files
    with pytest.raises(ValueError):
        numbers("a")
    assert not found[-1] and other.exists()
    start.parent.rename(f"{start.parent}-2").with_name("skuq").write_bytes(b"")
    assert numbers("a") == first and not files.glob("ram://skuq/*")
