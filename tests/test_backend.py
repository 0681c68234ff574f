"""Loading of the backend leaves the process' settings as they were."""

import gc

import pytest

from skuq.backend import _keras


@pytest.mark.parametrize("was_enabled", [True, False])
def test_garbage_collection_is_paused_and_restored(was_enabled):
    enabled_before = gc.isenabled()
    try:
        (gc.enable if was_enabled else gc.disable)()
        with pytest.raises(ImportError), _keras._without_collection():
            assert not gc.isenabled()
            raise ImportError
        assert gc.isenabled() == was_enabled
    finally:
        (gc.enable if enabled_before else gc.disable)()
