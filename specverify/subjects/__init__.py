# SPDX-License-Identifier: Apache-2.0
"""What is under test: how it declares itself, how it is found, how it is called safely."""
