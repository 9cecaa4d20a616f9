"""A trained model and its calibration."""

import pytest

from collab_fairseq.reparam.fairseq import calibrate, layer_ids
from tests.heads.cases import load, standard_state


@pytest.fixture(scope="session")
def trained(tiny_run, tiny_data):
    """The model of `standard_state`, in float32."""
    return load(standard_state(tiny_run), tiny_data, double=False)


@pytest.fixture(scope="session")
def calibrations(trained):
    """Statistics of all its layers on 100 sentences of train."""
    return calibrate(trained, "train", layer_ids(trained), sentences=100)
