# SPDX-License-Identifier: Apache-2.0
"""Fixtures that the tests share."""

import pytest


@pytest.fixture(params=["cpu", "cuda"])
def device(request):
    """Name of each device in turn; a test that asks for it runs on both."""
    if request.param == "cuda":
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
    return request.param
