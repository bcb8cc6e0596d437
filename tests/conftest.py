# SPDX-License-Identifier: Apache-2.0
"""Fixtures that the tests share."""

import os

import pytest
import torch

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores already


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    """Name of each device in turn; a test that asks for it runs on both."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return request.param
