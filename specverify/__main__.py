# SPDX-License-Identifier: Apache-2.0
"""``python -m specverify``."""

import sys

from specverify.cli import main

sys.exit(main())
